"""The gRPC client that :mod:`whamming.aio` and :mod:`whamming.blocking` are built on."""
