"""Importing and exporting items as files."""
