"""The gRPC services of the broker, on its event loop."""
