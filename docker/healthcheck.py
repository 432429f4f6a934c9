"""The health check of the image: asks the server of this container for its health, as any tool for gRPC would.

Where it listens, and with which certificate, follows from the variables that say so. A broker is healthy without its
name servers: it goes on to serve the clients that know it, so that the failure of one must not look like the failure of
all. So is a console that answers, whatever it has to say about its cluster.
"""

from __future__ import annotations

import os
import ssl
import sys
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from minimq_common.rpc import from_rpc_error, open_channel
from minimq_common.security.server_secrets import ServerSecrets

_TIMEOUT_S = 3.0


def main() -> None:
    """Exit with status 0 when the server serves, otherwise with 1 and the reason, which `docker inspect` shows."""
    listen = os.environ.get("MINIMQ_BROKER_LISTEN") or os.environ.get("MINIMQ_NAMESERVER_LISTEN")
    console_port = os.environ.get("MINIMQ_CONSOLE_PORT")
    if console_port:
        check_console(int(console_port))
    elif listen:
        check_server(listen)
    else:
        sys.exit(
            "the health check does not know what to ask: set MINIMQ_BROKER_LISTEN, MINIMQ_NAMESERVER_LISTEN or "
            "MINIMQ_CONSOLE_PORT"
        )


def check_server(listen: str) -> None:
    """Ask a name server or a broker that listens at an address."""
    secrets = os.environ.get("MINIMQ_BROKER_SECRETS") or os.environ.get("MINIMQ_NAMESERVER_SECRETS")
    trust = ServerSecrets(Path(secrets), requires_certificates=False).trust() if secrets else None
    with open_channel("127.0.0.1:" + listen.rpartition(":")[2], trust) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            sys.exit(f"{listen} does not answer: {from_rpc_error(error, 'the server').message}")
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        sys.exit(f"{listen} is {status}")
    sys.stdout.write(f"{status}\n")


def check_console(port: int) -> None:
    """Ask the console at a port for a page; any answer will do."""
    if os.environ.get("MINIMQ_CONSOLE_TLS_CERTIFICATE"):
        own = ssl.create_default_context()
        own.check_hostname, own.verify_mode = False, ssl.CERT_NONE  # it asks itself, and sends no secret
        connection: HTTPConnection = HTTPSConnection("127.0.0.1", port, timeout=_TIMEOUT_S, context=own)
    else:
        connection = HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        connection.request("HEAD", "/")
        connection.getresponse()
    except (OSError, HTTPException) as error:
        sys.exit(f"the console does not answer at port {port}: {error}")
    finally:
        connection.close()
    sys.stdout.write("it answers\n")


if __name__ == "__main__":
    main()
