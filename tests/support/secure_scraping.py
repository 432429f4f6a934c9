"""Health and metrics that a server with TLS shows."""

from __future__ import annotations

import ssl
import urllib.request
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from minimq.errors import MinimqError
from minimq_common.security.certificates import Trust
from minimq_common.security.channel_security import open_credentials
from minimq_common.security.credentials import CredentialsArgument
from minimq_common.wire import rpc

TIMEOUT_S = 60.0


def trust_of(credentials: CredentialsArgument | None) -> Trust:
    opened = open_credentials(credentials)
    assert opened is not None
    return opened.trust()


def scrape(address: str, trust: Trust | None, folder: Path) -> str:
    if trust is None:
        answer = urllib.request.urlopen(f"http://{address}/metrics", timeout=TIMEOUT_S)
    else:
        context = client_context(trust, folder)
        answer = urllib.request.urlopen(f"https://{address}/metrics", timeout=TIMEOUT_S, context=context)
    with answer:
        return str(answer.read().decode())


def client_context(trust: Trust, folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=trust.roots.decode())
    if trust.pair is not None:
        file = folder / "pair.pem"
        file.write_bytes(trust.pair.certificate + trust.pair.key)
        context.load_cert_chain(file)
    return context


def check_health(address: str, trust: Trust | None) -> MinimqError | None:
    with rpc.open_channel(address, trust) as channel:
        try:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            return rpc.from_rpc_error(error, "server")
    return None
