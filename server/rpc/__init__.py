"""gRPC: from services in the protos to handlers, from errors to statuses."""
