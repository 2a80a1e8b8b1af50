"""Items as columns, and segments built from them."""
