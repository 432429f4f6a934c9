"""Importing this before gRPC lets tests fork: gRPC's own handlers at a fork abort some children (docs/sending.md)."""

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
