"""A controller in etcd with TLS, which asks for certificates."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from minimq.errors import InvalidArgument, Unavailable
from minimq.local.certificate_signer import Signer
from minimq.local.server_process import free_port
from minimq_broker.assembly import BrokerOptions
from minimq_broker.replication.controller import parse
from minimq_broker.replication.etcd_controller import EtcdController, EtcdLink
from minimq_common.security.channel_security import PLAIN, ChannelSecurity
from minimq_common.security.server_secrets import security_of_folder

TIMEOUT_S = 30.0
KEY = "/minimq/test"

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made, signer = tmp_path_factory.mktemp("etcd"), Signer.new()
    server, broker, authority = signer.sign_server(["127.0.0.1"]), signer.sign_user("broker"), signer.pair.certificate
    other = Signer.new().pair.certificate
    for name, pair, roots in (("etcd", server, authority), ("broker", broker, authority), ("other", broker, other)):
        (made / name).mkdir()
        (made / name / "ca.crt").write_bytes(roots)
        (made / name / "tls.crt").write_bytes(pair.certificate)
        (made / name / "tls.key").write_bytes(pair.key)
    return made


@pytest.fixture(scope="module")
def endpoint(folder: Path) -> Iterator[str]:
    program = shutil.which("etcd")
    assert program, "the tests need etcd: `make setup` installs it"
    address, peer = f"127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
    command = [
        *(program, f"--data-dir={folder / 'data'}", "--name=m", f"--initial-cluster=m={peer}"),
        *(
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--listen-client-urls=https://{address}",
        ),
        *(f"--advertise-client-urls=https://{address}", f"--cert-file={folder / 'etcd/tls.crt'}"),
        *(f"--key-file={folder / 'etcd/tls.key'}", "--client-cert-auth", f"--trusted-ca-file={folder / 'etcd/ca.crt'}"),
    ]
    with (folder / "etcd.log").open("wb") as log:
        member = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield address
    finally:
        member.kill()
        member.wait()


def transact(endpoint: str, security: ChannelSecurity, *, until: float = 0.0) -> bool:
    """Put a value and return whether it is there; until some moment, again and again while that fails."""

    async def transact() -> bool:
        link = EtcdLink([endpoint], TIMEOUT_S, security)
        try:
            while True:
                try:
                    return (await link.transact({}, {KEY: b"x"}, KEY)).stored[KEY].value == b"x"
                except Unavailable:
                    if time.monotonic() >= until:
                        raise
                    await asyncio.sleep(0.05)
        finally:
            await link.close()

    return asyncio.run(transact())


@pytest.mark.fault
def test_the_controller_speaks_tls_with_certificates_of_its_own(endpoint: str, folder: Path) -> None:
    known = security_of_folder(folder / "broker")
    # It takes a moment until it listens, and elects itself.
    assert transact(endpoint, known, until=time.monotonic() + TIMEOUT_S)
    with pytest.raises(Unavailable, match="not signed by a CA that is trusted here"):
        transact(endpoint, security_of_folder(folder / "other"))
    with pytest.raises(Unavailable, match="does not answer"):
        transact(endpoint, PLAIN)


def test_what_the_options_say_has_to_fit(folder: Path) -> None:
    assert isinstance(parse("etcds://127.0.0.1:1", security=PLAIN), EtcdController)
    BrokerOptions(controller="etcds://etcd:2379", etcd_secrets=folder)
    for controller, secrets, reason in [
        ("etcds://etcd:2379", None, "go together"),
        ("etcd://etcd:2379", folder, "go together"),
        ("", folder, "go together"),
        ("etcds://etcd", folder, "or etcds:// for etcd with TLS"),
    ]:
        with pytest.raises(InvalidArgument, match=reason):
            BrokerOptions(controller=controller, etcd_secrets=secrets)
