"""A broker that is built without a feature."""

from __future__ import annotations

from pathlib import Path

import pytest

from minimq import Admin, Message, Producer
from minimq.errors import Unsupported
from minimq_broker.features.registry import FEATURES
from support.limited import limited
from support.protocol import FILES

#: The kernel's files must not import those of features.
KERNEL = {"broker", "controller", "errors", "nameserver", "options", "replication"}


def test_a_call_of_an_absent_feature_is_rejected_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(FEATURES, "search")
    with limited(tmp_path) as world, Admin(world.nameserver) as admin:
        admin.create_topic("t")
        with pytest.raises(Unsupported, match=r"without this feature \(it does not serve /minimq.v1.Search/Find\)"):
            admin.find_messages("t", key="k")


def test_a_topic_is_not_created_without_the_settings_it_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(FEATURES, "compaction")
    monkeypatch.delitem(FEATURES, "retention")
    with limited(tmp_path) as world, Admin(world.nameserver) as admin:
        with pytest.raises(Unsupported, match="no compaction of topics"):
            admin.create_topic("t", compaction=True)
        admin.create_topic("t")
        with pytest.raises(Unsupported, match="no retention_bytes of topics"):
            admin.update_topic("t", retention_bytes=1 << 20)


@pytest.mark.parametrize("message", [Message("t", b"later", deliver_after_s=60)], ids=["delayed"])
def test_a_batch_is_not_stored_without_the_feature_that_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: Message
) -> None:
    monkeypatch.delitem(FEATURES, "delayed")
    with limited(tmp_path) as world, Admin(world.nameserver) as admin, Producer(world.nameserver) as producer:
        admin.create_topic("t")
        with pytest.raises(Unsupported, match="lacks the feature behind 'delay' of an append"):
            producer.send(message)
        producer.send(Message("t", b"now"))
        assert admin.describe_topic("t").messages == 1


def test_the_wire_of_the_kernel_does_not_know_features() -> None:
    for file in FILES:
        name = file.name.rpartition("/")[2].removesuffix(".proto")
        if name in KERNEL:
            imported = {each.name.rpartition("/")[2].removesuffix(".proto") for each in file.dependencies}
            assert imported - {"descriptor"} <= KERNEL, name
