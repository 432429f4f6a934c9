"""The health check of the image: asks the server of this container for its health, as any tool for gRPC would.

The variables of the server say where it listens, and with which certificate. A broker is healthy without its name
servers: it continues to serve the clients that know it, so the failure of one must not look like the failure of all.
A console that answers is healthy, whatever it reports about its cluster.
"""

from __future__ import annotations

import ipaddress
import json
import os
import ssl
import sys
from collections.abc import Sequence
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from minimq_common.security.server_secrets import ServerSecrets
from minimq_common.wire.rpc import CHANNEL_OPTIONS, Options, from_rpc_error, open_channel

_TIMEOUT_S = 3.0


def main() -> None:
    """Exit with status 0 when the server serves, otherwise with 1 and the reason, which `docker inspect` shows."""
    listen = os.environ.get("MINIMQ_BROKER_LISTEN") or os.environ.get("MINIMQ_NAMESERVER_LISTEN")
    console_port = os.environ.get("MINIMQ_CONSOLE_PORT", "")
    if etcd := os.environ.get("ETCD_LISTEN_METRICS_URLS"):
        check_etcd(int(etcd.rpartition(":")[2]))
    elif listen:
        check_server(reachable(listen))
    elif console_port.isdecimal():  # not tcp://HOST:PORT, by which Kubernetes names a service minimq-console
        host = os.environ.get("MINIMQ_CONSOLE_HOST") or "127.0.0.1"
        check_console(reachable(f"{host}:{console_port}"))
    else:
        sys.exit(
            "the health check does not know what to ask: set MINIMQ_BROKER_LISTEN, MINIMQ_NAMESERVER_LISTEN, "
            "MINIMQ_CONSOLE_PORT or ETCD_LISTEN_METRICS_URLS"
        )


def reachable(listen: str) -> str:
    """Return the address at which this container reaches who listens: the loopback one if that is all addresses."""
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    try:
        address = ipaddress.ip_address(host or "0.0.0.0")
    except ValueError:  # a name
        return listen
    if address.is_unspecified:
        address = ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1")
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def check_server(address: str) -> None:
    """Ask a name server or a broker at an address."""
    directory = os.environ.get("MINIMQ_BROKER_SECRETS") or os.environ.get("MINIMQ_NAMESERVER_SECRETS")
    trust = None
    options: Options = CHANNEL_OPTIONS
    if directory:
        secrets = ServerSecrets(Path(directory), requires_certificates=False)
        trust, options = secrets.trust(), (*CHANNEL_OPTIONS, *expecting(secrets.certificate.names))
    with open_channel(address, trust, options) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            sys.exit(f"{address} does not answer: {from_rpc_error(error, 'the server').message}")
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        sys.exit(f"{address} is {status}")
    sys.stdout.write(f"{status}\n")


def check_etcd(port: int) -> None:
    """Ask the member of etcd that has its metrics at a port whether it has a leader and can write."""
    connection = HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/health")
        answer = connection.getresponse().read().decode()
    except (OSError, HTTPException) as error:
        sys.exit(f"etcd does not answer at port {port}: {error}")
    finally:
        connection.close()
    if json.loads(answer).get("health") != "true":
        sys.exit(f"etcd is not healthy: {answer}")
    sys.stdout.write("etcd is healthy\n")


def expecting(names: Sequence[str]) -> Options:
    """Return the options of a channel that expects a certificate of these names, whatever address it calls."""
    name = next(iter(names), "").replace("*", "health", 1)
    with suppress(ValueError):  # a name of DNS
        name = str(ipaddress.ip_address(name))
    return (("grpc.ssl_target_name_override", name),) if name else ()


def check_console(address: str) -> None:
    """Ask the console at an address for a page; any answer will do."""
    if os.environ.get("MINIMQ_CONSOLE_TLS_CERTIFICATE"):
        own = ssl.create_default_context()
        own.check_hostname, own.verify_mode = False, ssl.CERT_NONE  # it asks itself, and sends no secret
        connection: HTTPConnection = HTTPSConnection(address, timeout=_TIMEOUT_S, context=own)
    else:
        connection = HTTPConnection(address, timeout=_TIMEOUT_S)
    try:
        connection.request("HEAD", "/")
        connection.getresponse()
    except (OSError, HTTPException) as error:
        sys.exit(f"the console does not answer at {address}: {error}")
    finally:
        connection.close()
    sys.stdout.write("it answers\n")


if __name__ == "__main__":
    main()
