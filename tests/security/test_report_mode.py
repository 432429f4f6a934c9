"""Keys and rules are introduced without rejecting anybody: servers report what they would reject."""

from __future__ import annotations

from pathlib import Path

import pytest

from minimq import Admin, Credentials, LocalCluster, Message, Producer, PullConsumer
from minimq.errors import AccessDenied, NotAuthenticated
from minimq_common.security.credentials_file import CredentialsFile, written
from support.waiting import wait_until

REPORT = {"access_mode": "report", "metrics": "127.0.0.1:0"}


def send(credentials: Credentials | str, body: bytes) -> None:
    with Producer(credentials=credentials) as producer:
        producer.send(Message("orders", body))


def without_key(credentials: Path) -> Credentials:
    """Return credentials with the addresses and the CA alone."""
    opened = CredentialsFile(Credentials(str(credentials)))
    trust = opened.trust()
    return Credentials.from_text(written(opened.nameservers, type(trust)(trust.roots), "Of nobody."))


def test_nobody_is_rejected_until_keys_and_rules_are_enforced(tmp_path: Path) -> None:
    data = {"data_dir": tmp_path / "data", "brokers": 1, "secure": True}
    with LocalCluster(**data, broker_options=REPORT, nameserver_options=REPORT) as cluster:  # type: ignore[arg-type]
        nobody = without_key(Path(str(cluster.credentials)))
        with Admin(credentials=cluster.credentials) as admin:
            admin.create_topic("orders", queues=1)
            reader = Credentials.from_text(admin.add_user("reader", ["allow read topic orders"]))
            assert all(status.only_reports for status in admin.access_status())
        for intruder in (nobody, reader):
            with Admin(credentials=intruder) as admin, pytest.raises(AccessDenied, match="may not see or change users"):
                admin.add_user("intruder", ["allow manage cluster"])
        send(nobody, b"of nobody")
        send(reader, b"of a reader")
        logs = [server.log_path for server in (*cluster.nameservers, *cluster.brokers)]

        def reported(text: str) -> bool:
            return any(text in log.read_text() for log in logs)

        wait_until(lambda: reported("a caller would be rejected reason=none"), what="the caller without a key")
        wait_until(lambda: reported("would be rejected user=reader need='write topic orders'"), what="the right")
        wait_until(lambda: reported("nothing is rejected"), what="the warning")
    with LocalCluster(**data) as cluster:  # type: ignore[arg-type]
        nobody = without_key(Path(str(cluster.credentials)))
        with Admin(credentials=cluster.credentials) as admin:
            assert not any(status.only_reports for status in admin.access_status())
            reader = Credentials.from_text(admin.rotate_user("reader"))
        with pytest.raises(NotAuthenticated, match="there is no key in this call"):
            send(nobody, b"rejected")
        with pytest.raises(AccessDenied, match="user reader may not write topic orders"):
            send(reader, b"rejected")
        with PullConsumer(credentials=cluster.credentials, group="g", start="earliest") as consumer:
            consumer.subscribe("orders")
            bodies: set[bytes] = set()

            def all_read() -> bool:
                bodies.update(message.body for message in consumer.poll(0.1))
                return len(bodies) == 2

            wait_until(all_read, what="the messages of before")
    assert bodies == {b"of nobody", b"of a reader"}
