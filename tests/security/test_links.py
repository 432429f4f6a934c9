"""TLS on every link: who belongs to the cluster notices nothing, who does not gets in nowhere."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from minimq import Admin, Cluster, Credentials, LocalCluster, Message, Producer, PullConsumer
from minimq.errors import InvalidArgument, Unavailable
from minimq.local import certificate_signer
from minimq.local.certificate_authority import CertificateAuthority
from minimq_common.security.certificates import Trust
from minimq_common.security.channel_security import VARIABLE
from minimq_common.security.credentials import CredentialsArgument
from minimq_nameserver.options import NameServerOptions
from minimq_nameserver.server import NameServer
from support.command import environment
from support.key_search import files_with, found_in, process_texts, secrets_under
from support.loop_thread import LoopThread
from support.scraping import metrics_address
from support.secure_scraping import check_health, scrape, trust_of
from support.waiting import wait_until

TIMEOUT_S = 60.0

pytestmark = pytest.mark.system


def rejection(credentials: CredentialsArgument, nameserver: str | None = None) -> str:
    with pytest.raises(Unavailable) as raised, Admin(nameserver, timeout_s=TIMEOUT_S, credentials=credentials) as admin:
        admin.cluster()
    return raised.value.message


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


def test_what_is_sent_is_read_and_copied(secure: LocalCluster, new_name: Callable[[], str]) -> None:
    with (
        Cluster(credentials=secure.credentials) as cluster,
        Producer(credentials=secure.credentials) as producer,
        PullConsumer(cluster, group=new_name()) as consumer,
    ):
        consumer.subscribe("orders")
        sent = {receipt.message_id for receipt in producer.send_many(Message("orders", b"x") for _ in range(100))}
        read: set[str] = set()
        while not sent <= read:
            read |= {message.message_id for message in consumer.poll(TIMEOUT_S)}
        consumer.commit()
    master, slave = (broker.replication() for broker in secure.brokers)
    # Readers see what the replicas in sync have, and the slave is one of them.
    assert master is not None
    assert slave is not None
    assert (master.in_sync, slave.connected) == ((0, 1), True)


def test_a_text_and_the_variable_serve_as_credentials(secure: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert secure.credentials is not None
    text = secure.credentials.read_text()
    with Admin(credentials=Credentials.from_text(text)) as admin:
        assert "orders" in admin.list_topics()
    monkeypatch.setenv(VARIABLE, str(secure.credentials))
    with Admin() as admin:
        assert "orders" in admin.list_topics()
    with Cluster(credentials="") as plain, pytest.raises(InvalidArgument, match="give them to the Cluster"):
        Admin(plain, credentials=secure.credentials)
    assert "BEGIN" not in repr(Credentials.from_text(text))


def test_who_has_no_credentials_or_others_is_told(
    secure: LocalCluster, stranger: CertificateAuthority, loop: LoopThread
) -> None:
    assert "give the credentials of a user (credentials=, --credentials" in rejection("", secure.nameserver)
    assert "not signed by a CA that is trusted here" in rejection(stranger.admin)
    assert secure.credentials is not None
    with loop.serving(NameServer(NameServerOptions(listen="127.0.0.1:0"))) as plain:
        said = rejection(secure.credentials, plain.address)
    assert "it speaks no TLS: leave the credentials out" in said
    assert "start one with `minimq-nameserver" not in said


def test_no_port_lets_in_who_has_no_certificate_of_the_authority(
    secure: LocalCluster,
    authority: CertificateAuthority,
    stranger: CertificateAuthority,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = trust_of(secure.credentials)
    monkeypatch.setattr(certificate_signer, "_DAYS", 0)
    expired = trust_of(authority.issue("expired", []))
    (authority.directory / "expired.minimq").unlink()
    others = {
        "plain": None,
        "without a certificate": Trust(known.roots),
        "with one that has expired": expired,
        "with that of another authority": Trust(known.roots, trust_of(stranger.admin).pair),
    }
    for server in (*secure.nameservers, *secure.brokers):
        assert check_health(server.address, known) is None
        for what, trust in others.items():
            failure = check_health(server.address, trust)
            assert isinstance(failure, Unavailable), (server, what)
            assert "give the credentials of a user" in failure.message
            assert "or new ones if their certificate has expired" in failure.message


def accepted(shown: str, name: str) -> str:
    return shown if f"\n{name}_secrets_rejected 0.0\n" in shown else ""


def test_metrics_are_shown_by_https_to_who_has_a_certificate_and_say_until_when_it_lasts(
    secure: LocalCluster, authority: CertificateAuthority, tmp_path: Path
) -> None:
    known = trust_of(secure.credentials)
    for server, name in ((secure.nameservers[0], "minimq_nameserver"), (secure.brokers[0], "minimq_broker")):
        address = metrics_address(server.log_path)
        host, _, port = address.rpartition(":")
        with closing(socket.create_connection((host, int(port)))):  # it says nothing, and nobody waits for it
            # A test before this one may have changed its files a moment ago.
            shown = wait_until(
                lambda address=address, name=name: accepted(scrape(address, known, tmp_path), name),  # type: ignore[misc]
                TIMEOUT_S,
                what="its files are accepted",
            )
        ends = re.search(rf"^{name}_certificate_expiry_timestamp_seconds (\S+)$", shown, re.MULTILINE)
        assert ends is not None
        assert float(ends[1]) == authority.server_certificate().ends_at
        for trust in (None, Trust(known.roots)):
            with pytest.raises((urllib.error.URLError, OSError)):
                scrape(address, trust, tmp_path)


def test_a_snapshot_is_taken_with_the_secrets_of_a_server(
    secure: LocalCluster, authority: CertificateAuthority, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "minimq_broker"]
    copy = ["snapshot", "--source", secure.brokers[0].address, str(tmp_path / "copy")]
    done = subprocess.run(
        [*command, "--secrets", str(authority.server), *copy],
        env=environment(),
        capture_output=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    assert done.stdout.startswith(b"copied positions 0 to ")


def test_no_secret_is_logged_or_stored_or_in_the_list_of_processes(secure: LocalCluster) -> None:
    secrets = secrets_under(secure.data_dir)
    assert len(secrets) >= 7  # two keys, and three lines of at least two private keys, the first of which are the same
    for server in (*secure.nameservers, *secure.brokers):
        assert [json.loads(line)["level"] for line in server.log_path.read_text().splitlines()].count("debug")
    assert files_with(secure.data_dir, secrets) == []
    shown = [*process_texts()]
    assert sum(b"--secrets=" in text for text in shown) >= len(secure.nameservers) + len(secure.brokers)
    assert not any(found_in(text, secrets) for text in shown)
