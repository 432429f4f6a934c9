"""Code that at least two parts of minimq share: values, the batch format, errors, names, gRPC, security and serving."""

import os

# Set before gRPC is imported; otherwise it logs every closed connection to stderr.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


def set_up_grpc() -> None:
    """Set variables of gRPC for a server. Call it before gRPC is imported.

    It must not log, unless GRPC_VERBOSITY is INFO or DEBUG: it logs to stderr in a format of its own, without a limit,
    and a stranger who breaks a connection causes four lines. ERROR is not kept, because a server inherits it from the
    `LocalCluster` that starts it.
    """
    if os.environ["GRPC_VERBOSITY"].upper() == "ERROR":
        os.environ["GRPC_VERBOSITY"] = "NONE"
    # Without its event engine, the thread that waits for completions also reads the sockets.
    os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
