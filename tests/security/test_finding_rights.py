"""Finding takes the right to read the topic; a trace shows the groups that its caller may describe, and no others."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, Producer, PullConsumer
from minimq.errors import AccessDenied
from minimq.local.certificate_authority import CertificateAuthority
from support.user_files import credentials_of
from support.waiting import wait_until

pytestmark = pytest.mark.system


def test_groups_are_traced_for_those_who_may_describe_them(
    secure: LocalCluster, authority: CertificateAuthority, tmp_path: Path
) -> None:
    with Admin(credentials=secure.credentials) as admin, Producer(credentials=secure.credentials) as producer:
        admin.create_topic("traced", queues=1)
        receipt = producer.send(Message("traced", b"x", keys=("k",)))
        for group in ("seen", "secret"):
            with PullConsumer(credentials=secure.credentials, group=group, start="earliest") as consumer:
                consumer.subscribe("traced")
                wait_until(partial(consumer.poll, 0.1))
                consumer.commit()
        assert {each.group for each in admin.trace_message(receipt.message_id, topic="traced").groups} == {
            "seen",
            "secret",
        }
        finder, describer = (
            credentials_of(secure, authority, tmp_path, name, admin.add_user(name, rules))
            for name, rules in (
                ("finder", ["allow read topic traced", "allow read group seen"]),
                ("describer", ["allow describe topic traced"]),
            )
        )
    with Admin(credentials=finder) as admin:
        assert [each.body for each in admin.find_messages("traced", key="k").messages] == [b"x"]
        assert [each.group for each in admin.trace_message(receipt.message_id).groups] == ["seen"]
    with Admin(credentials=describer) as admin:
        for refused in (
            lambda: admin.find_messages("traced", key="k"),
            lambda: admin.message_at(f"{receipt.queue}@{receipt.queue_offset}"),
            lambda: admin.trace_message(receipt.message_id, topic="traced"),
        ):
            with pytest.raises(AccessDenied, match="may not read topic traced"):
                refused()
