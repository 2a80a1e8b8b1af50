"""The demo: search dictionary definitions by meaning, with binary codes of their embeddings.

``python -m whamming.demo`` runs it. :mod:`whamming.demo.texts` has the data and the model for sentences you type.
"""
