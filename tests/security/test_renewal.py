"""Certificates that are replaced while the cluster works."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, Producer, SendReceipt
from minimq.local.certificate_authority import CertificateAuthority
from support.scraping import metrics_address
from support.secure_scraping import scrape, trust_of
from support.waiting import wait_until

PATIENCE_S = 60.0
TIMES = 2

pytestmark = pytest.mark.system


def shown(address: str) -> str:
    """Return the certificate that a server shows now."""
    host, _, port = address.rpartition(":")
    return ssl.get_server_certificate((host, int(port)), timeout=PATIENCE_S)


def test_certificates_are_replaced_under_load_without_a_failed_send(
    secure: LocalCluster, authority: CertificateAuthority, new_name: Callable[[], str]
) -> None:
    certificate = authority.server / "tls.crt"
    servers = (*secure.nameservers, *secure.brokers)
    ended = threading.Event()
    sent: list[Future[SendReceipt]] = []
    with Producer(credentials=secure.credentials) as producer:

        def load() -> None:
            while not ended.wait(0.002):
                sent.append(producer.send_async(Message("orders", b"x")))

        loading = threading.Thread(target=load)
        loading.start()
        try:
            for _ in range(TIMES):
                authority.renew(["also.example.org"])
                authority.issue("admin", [server.address for server in secure.nameservers])
                wait_until(
                    lambda: {shown(server.address) for server in servers} == {certificate.read_text()},
                    PATIENCE_S,
                    what="all servers show the new certificate",
                )
                with Admin(credentials=secure.credentials) as admin:  # a new connection
                    assert admin.list_topics() == ["orders"]
        finally:
            ended.set()
            loading.join()
        assert sent
        for future in sent:
            future.result(PATIENCE_S)
    assert all(broker.in_sync for broker in secure.brokers)
    assert "also.example.org" in authority.server_certificate().names


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
            PATIENCE_S,
            what="the broker complains",
        )
        assert shown(broker.address) == known
        assert "minimq_broker_secrets_rejected 1.0" in scrape(
            metrics_address(broker.log_path), trust_of(secure.credentials), tmp_path
        )
        with Admin(credentials=secure.credentials) as admin:
            assert admin.list_topics() == ["orders"]
    finally:
        certificate.write_text(good)
