"""Code that at least two parts of minimq share: values, the batch format, errors, names, gRPC, security and serving."""

import os

# Set before gRPC is imported; otherwise it logs every closed connection to stderr.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


def silence_grpc() -> None:
    """Keep gRPC from logging, unless GRPC_VERBOSITY is INFO or DEBUG. Call it before gRPC is imported.

    gRPC logs to stderr in a format of its own, without a limit: a stranger who breaks a connection causes four lines.
    ERROR is not kept, because a server inherits it from the `LocalCluster` that starts it.
    """
    if os.environ["GRPC_VERBOSITY"].upper() == "ERROR":
        os.environ["GRPC_VERBOSITY"] = "NONE"
