"""Items as columns, and the segments that are made of them."""
