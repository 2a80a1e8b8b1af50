"""Keeping an index in an LMDB file."""
