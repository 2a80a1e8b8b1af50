"""The life of a query on the server."""
