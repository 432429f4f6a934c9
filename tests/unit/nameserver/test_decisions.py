"""The file of the controller's decisions."""

from __future__ import annotations

from pathlib import Path

import pytest

from minimq_common.errors import StoreError
from minimq_common.replica_set import ReplicaSet, found
from minimq_nameserver.controller import decisions
from minimq_nameserver.controller.decisions import DecisionFile
from support.reports import report


def test_a_full_file_says_so_and_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "_MAP_BYTES", 1 << 16)
    file = DecisionFile(tmp_path)
    saved: list[ReplicaSet] = []

    def save_until_full() -> None:
        for number in range(1000):
            record = found(report(broker_name=f"broker-{number}"), 3.0)
            assert record is not None
            file.save(record)
            saved.append(record)

    with pytest.raises(StoreError, match=r"decisions\.mdb is full: .*move it away"):
        save_until_full()
    assert sorted(file.load(), key=lambda each: each.key) == sorted(saved, key=lambda each: each.key)
    file.close()
