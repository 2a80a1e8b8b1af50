"""Whamming's demonstration: dictionary texts with the sign bits of their embeddings, and a model for what you type.

``python -m whamming.demo`` runs it; the data and the model are :mod:`whamming.demo.texts`.
"""
