"""The gRPC services: handlers of the rpcs, and the translation of errors to statuses."""
