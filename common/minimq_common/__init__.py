"""What at least two roles of minimq need: values, the batch format, errors, names and the plumbing of calls."""

import os

# gRPC reports every connection that ends on stderr, as information, unless it is told otherwise before it is loaded.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
# Clients do not come along into a fork. gRPC would start threads there, which abort the process now and then.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
