"""Certificates that are replaced while the cluster works."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, Producer, SendReceipt
from minimq.local.certificate_authority import CertificateAuthority
from minimq.local.certificate_signer import Signer
from minimq_common.security.certificates import Pair, Trust
from support.scraping import metrics_address
from support.secure_scraping import check_health, scrape, trust_of
from support.waiting import wait_until

TIMEOUT_S = 60.0
TIMES = 2
LONG_S, PAUSE_S = 60.0, 2.0

pytestmark = pytest.mark.system


def shown(address: str) -> str:
    """Return the certificate that a server shows now."""
    host, _, port = address.rpartition(":")
    return ssl.get_server_certificate((host, int(port)), timeout=TIMEOUT_S)


def test_certificates_are_replaced_under_load_without_a_failed_send(
    secure: LocalCluster, authority: CertificateAuthority
) -> None:
    with sending(secure):
        for _ in range(TIMES):
            renew(secure, authority)
            assert_served(secure)
    assert all(broker.in_sync for broker in secure.brokers)
    assert "also.example.org" in authority.server_certificate().names


def test_another_authority_takes_over_under_load_without_a_failed_send(
    secure: LocalCluster, authority: CertificateAuthority, tmp_path: Path
) -> None:
    former, own, roots = trust_of(secure.credentials), authority.directory / "authority", authority.server / "ca.crt"
    another = CertificateAuthority(tmp_path)
    another.init([], [])
    certificate, key = ((tmp_path / "authority" / name).read_bytes() for name in ("ca.crt", "ca.key"))
    with sending(secure):
        roots.write_bytes(roots.read_bytes() + certificate)
        known = Trust(former.roots, Signer.load(Pair(certificate, key)).sign_user("probe"))
        wait_until(lambda: knows(secure, known), TIMEOUT_S, what="all servers trust both")
        issue(secure, authority)
        (own / "ca.crt").write_bytes(certificate)
        (own / "ca.key").write_bytes(key)
        renew(secure, authority)
        assert_served(secure)
        roots.write_bytes(certificate)
        wait_until(lambda: not is_served(secure, former), TIMEOUT_S, what="no server trusts the former authority")
        assert_served(secure)
    assert all(broker.in_sync for broker in secure.brokers)


@contextmanager
def sending(secure: LocalCluster) -> Iterator[None]:
    """Send all the time; all has arrived at the end."""
    ended = threading.Event()
    sent: list[Future[SendReceipt]] = []
    with Producer(credentials=secure.credentials) as producer:

        def load() -> None:
            while not ended.wait(0.002):
                sent.append(producer.send_async(Message("orders", b"x")))

        loading = threading.Thread(target=load)
        loading.start()
        try:
            yield
        finally:
            ended.set()
            loading.join()
        assert sent
        for future in sent:
            future.result(TIMEOUT_S)


def renew(secure: LocalCluster, authority: CertificateAuthority) -> None:
    authority.renew(["also.example.org"])
    issue(secure, authority)
    wait_until_renewed(secure, authority)


def issue(secure: LocalCluster, authority: CertificateAuthority) -> None:
    authority.issue("admin", [server.address for server in secure.nameservers])


def wait_until_renewed(secure: LocalCluster, authority: CertificateAuthority) -> None:
    certificate = (authority.server / "tls.crt").read_text()
    servers = (*secure.nameservers, *secure.brokers)
    wait_until(
        lambda: {shown(server.address) for server in servers} == {certificate},
        TIMEOUT_S,
        what="all servers show the new certificate",
    )


def assert_served(secure: LocalCluster) -> None:
    with Admin(credentials=secure.credentials) as admin:  # a new connection
        assert "orders" in admin.list_topics()


def knows(secure: LocalCluster, trust: Trust) -> bool:
    return all(check_health(server.address, trust) is None for server in (*secure.nameservers, *secure.brokers))


def is_served(secure: LocalCluster, trust: Trust) -> bool:
    return any(check_health(server.address, trust) is None for server in (*secure.nameservers, *secure.brokers))


def test_servers_go_on_with_what_they_have_when_new_files_are_damaged(
    secure: LocalCluster, authority: CertificateAuthority, tmp_path: Path
) -> None:
    broker, certificate = secure.brokers[0], authority.server / "tls.crt"
    good = certificate.read_text()
    known = shown(broker.address)
    certificate.write_text("garbage")
    try:
        wait_until(
            lambda: bool(shown(broker.address)) and "new files cannot be used" in broker.log_path.read_text(),
            TIMEOUT_S,
            what="the broker complains",
        )
        assert shown(broker.address) == known
        assert "minimq_broker_secrets_rejected 1.0" in scrape(
            metrics_address(broker.log_path), trust_of(secure.credentials), tmp_path
        )
        with Admin(credentials=secure.credentials) as admin:
            assert "orders" in admin.list_topics()
    finally:
        certificate.write_text(good)
