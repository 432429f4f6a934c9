"""The gRPC face of the broker: requests in, store and core, answers out."""
