"""Code that the server and the clients share: message conversion, error statuses, PEM files."""
