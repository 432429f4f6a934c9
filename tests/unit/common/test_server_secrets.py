"""Certificates of servers: what does not fit is rejected with the reason, what is replaced counts at once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from minimq.local import certificate_signer
from minimq.local.certificate_signer import Signer
from minimq_common.errors import InvalidArgument, Unavailable
from minimq_common.security import access_document, watched
from minimq_common.security.access_control import control_of
from minimq_common.security.certificates import CertificateReport, Pair, Trust
from minimq_common.security.server_secrets import ServerSecrets
from minimq_common.security.user_key import new_key
from minimq_common.wire import rpc

HOST = "127.0.0.1"
FOR_EVER = CertificateReport((), float("inf"))


@pytest.fixture
def signer() -> Signer:
    return Signer.new()


@pytest.fixture(autouse=True)
def nothing_is_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have files looked at each time."""
    monkeypatch.setattr(watched, "_FRESH_S", 0.0)


def fill(directory: Path, pair: Pair, roots: bytes) -> Path:
    directory.mkdir(exist_ok=True)
    for name, data in (("tls.crt", pair.certificate), ("tls.key", pair.key), ("ca.crt", roots)):
        (directory / name).write_bytes(data)
    return directory


def at(moment: datetime) -> type:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return moment

    return Clock


def long_ago(signer: Signer, monkeypatch: pytest.MonkeyPatch) -> Pair:
    with monkeypatch.context() as patched:
        patched.setattr(certificate_signer, "datetime", at(datetime.now(UTC) - timedelta(days=500)))
        return signer.sign_server([HOST])


def soon(signer: Signer, monkeypatch: pytest.MonkeyPatch) -> Pair:
    with monkeypatch.context() as patched:
        patched.setattr(certificate_signer, "datetime", at(datetime.now(UTC) + timedelta(days=2)))
        return signer.sign_server([HOST])


def expired_authority(monkeypatch: pytest.MonkeyPatch) -> Signer:
    with monkeypatch.context() as patched:
        patched.setattr(certificate_signer, "datetime", at(datetime.now(UTC) - timedelta(days=4_000)))
        return Signer.new()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (long_ago, "certificate has expired"),
        (soon, "certificate is not yet valid"),
        (lambda *_: Signer.new().sign_server([HOST]), "unable to get local issuer certificate"),
        (lambda signer, _: Pair(signer.sign_server([HOST]).certificate, Signer.new().pair.key), "another certificate"),
        (lambda *_: Pair(b"garbage", b"garbage"), "damaged"),
        (lambda signer, _: Pair(signer.sign_server([HOST]).certificate[:300], signer.pair.key), "damaged"),
    ],
    ids=["expired", "future", "authority", "key", "garbage", "cut"],
)
def test_one_that_does_not_fit_is_rejected_with_the_reason(
    make: Callable[[Signer, pytest.MonkeyPatch], Pair],
    reason: str,
    signer: Signer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = fill(tmp_path, make(signer, monkeypatch), signer.pair.certificate)
    with pytest.raises(InvalidArgument, match=reason) as raised:
        ServerSecrets(directory, requires_certificates=False)
    assert str(directory) in raised.value.message


def test_a_certificate_of_an_authority_that_has_expired_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = expired_authority(monkeypatch)
    with pytest.raises(InvalidArgument, match="certificate has expired"):
        ServerSecrets(fill(tmp_path, former.sign_server([HOST]), former.pair.certificate), requires_certificates=False)


def test_a_key_of_servers_that_is_taken_away_ends_while_the_certificate_cannot_be_used(
    signer: Signer, tmp_path: Path
) -> None:
    directory = fill(tmp_path, signer.sign_server([HOST]), signer.pair.certificate)
    keys = [new_key(bytes([number]) * 37) for number in range(2)]
    file = directory / "cluster.key"
    file.write_text("".join(f"{key.text}\n" for key in keys))
    (directory / "access.toml").write_text("[users.alice]")
    found = ServerSecrets(directory, requires_certificates=False)
    before = found.trust()
    assert (before.bearer, found.keys(), found.trust() is before) == (keys[0], tuple(keys), True)
    (directory / "tls.crt").write_text("garbage")
    file.write_text(keys[1].text)
    assert found.keys() == (keys[1],)
    assert (found.trust().bearer, found.trust().pair, found.rejected) == (keys[1], before.pair, True)


def test_a_folder_has_cluster_key_and_access_toml_or_neither(
    signer: Signer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tmp_path, signer.sign_server([HOST]), signer.pair.certificate)
    assert control_of(None) is None
    assert control_of(ServerSecrets(tmp_path, requires_certificates=False)) is None
    assert "no keys are required" in caplog.text
    for name, text, lacking in (
        ("access.toml", "[users.alice]", "cluster.key"),
        ("cluster.key", new_key(bytes(37)).text, "access.toml"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(InvalidArgument, match=rf"has {name} and no {lacking}: copy it"):
            ServerSecrets(tmp_path, requires_certificates=False)
        (tmp_path / name).unlink()


@pytest.mark.parametrize("name", ["tls.crt", "tls.key", "ca.crt"])
def test_a_file_that_is_missing_or_too_large_is_named(name: str, signer: Signer, tmp_path: Path) -> None:
    fill(tmp_path, signer.sign_server([HOST]), signer.pair.certificate)
    (tmp_path / name).unlink()
    with pytest.raises(InvalidArgument, match=f"cannot read .*/{name}: No such file"):
        ServerSecrets(tmp_path, requires_certificates=False)
    (tmp_path / name).touch()
    os.truncate(tmp_path / name, 1 << 30)
    with pytest.raises(InvalidArgument, match="it is too large for secrets"):
        ServerSecrets(tmp_path, requires_certificates=False)


def test_an_access_toml_over_its_limit_is_rejected(signer: Signer, tmp_path: Path) -> None:
    fill(tmp_path, signer.sign_server([HOST]), signer.pair.certificate)
    (tmp_path / "cluster.key").write_text(new_key(bytes(37)).text)
    (tmp_path / "access.toml").write_text("[users.alice]\n" + "#" * access_document.MAX_DOCUMENT_BYTES)
    with pytest.raises(InvalidArgument, match="has more than 1048576 bytes"):
        ServerSecrets(tmp_path, requires_certificates=False)


def test_files_that_are_replaced_one_by_one_count_once_they_fit(signer: Signer, tmp_path: Path) -> None:
    first, second = signer.sign_server([HOST]), signer.sign_server(["second"])
    secrets = ServerSecrets(fill(tmp_path, first, signer.pair.certificate), requires_certificates=False)
    (tmp_path / "tls.key").write_bytes(second.key)
    assert secrets.trust().pair == first
    (tmp_path / "tls.crt").write_bytes(second.certificate)
    assert secrets.trust().pair == second
    trust = secrets.trust()
    away = (tmp_path / "ca.crt").rename(tmp_path / "away")
    assert secrets.rejected
    assert secrets.trust() is trust
    away.rename(tmp_path / "ca.crt")
    assert not secrets.rejected


# ---- over a connection ----------------------------------------------------------------------------


class Health(health_pb2_grpc.HealthServicer):
    async def Check(self, request: Any, context: Any) -> Any:
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)


class Peer:
    """A server with TLS, and what a client says of it."""

    def __init__(self, secrets: ServerSecrets | None) -> None:
        self._secrets = secrets

    async def __aenter__(self) -> Peer:
        self._server = grpc.aio.server(options=rpc.SERVER_OPTIONS)
        health_pb2_grpc.add_HealthServicer_to_server(Health(), self._server)
        self.address = await rpc.bind(self._server, f"{HOST}:0", self._secrets)
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(0)


async def check(stub: Any) -> str:
    try:
        await stub.Check(health_pb2.HealthCheckRequest(), timeout=30)
    except grpc.aio.AioRpcError as error:
        said = rpc.from_rpc_error(error, "server")
        assert isinstance(said, Unavailable)
        return said.message
    return "served"


def test_a_client_is_told_why_it_does_not_trust_a_server(
    signer: Signer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = signer.pair.certificate
    former = expired_authority(monkeypatch)

    async def ask(pair: Pair, trusted: bytes = roots) -> str:
        with monkeypatch.context() as patched:  # a certificate that expires while it is used is not looked at again
            patched.setattr("minimq_common.security.server_secrets.meet_itself", lambda *_, **__: FOR_EVER)
            secrets = ServerSecrets(fill(tmp_path, pair, roots), requires_certificates=False)
        async with Peer(secrets) as peer, rpc.open_aio_channel(peer.address, Trust(trusted)) as channel:
            return await check(health_pb2_grpc.HealthStub(channel))

    async def ask_all() -> None:
        assert await ask(signer.sign_server([HOST])) == "served"
        assert "its certificate has expired" in await ask(long_ago(signer, monkeypatch))
        assert "compare the clocks" in await ask(soon(signer, monkeypatch))
        assert "its certificate is not for this address" in await ask(signer.sign_server(["elsewhere"]))
        other = Signer.new().pair.certificate
        assert "its certificate has expired" in await ask(former.sign_server([HOST]), former.pair.certificate)
        assert "not signed by a CA that is trusted here" in await ask(signer.sign_server([HOST]), other)

    asyncio.run(ask_all())
