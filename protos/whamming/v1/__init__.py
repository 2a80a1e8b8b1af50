"""The messages and services of the wire, as protoc generates them from the protos beside this file."""
