"""Code that at least two parts of minimq share: values, the batch format, errors, names, gRPC, security and serving."""

import os

# Set before gRPC is imported; otherwise it logs every closed connection to stderr.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
