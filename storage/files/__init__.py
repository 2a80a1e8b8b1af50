"""An index in an LMDB file: its records, its pages, its locks."""
