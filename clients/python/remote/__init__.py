"""How clients talk to a server."""
