"""Code that at least two parts of minimq share: values, the batch format, errors, names and the plumbing of calls."""

import os

# gRPC reports every connection that ends on stderr, as information, unless it is told otherwise before it is loaded.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
