"""Half messages in a real store: one outcome for each number forever, whoever asks and whatever fails between."""

from __future__ import annotations

from pathlib import Path

import pytest

from minimq_broker.features.staged import life_cycles
from minimq_broker.features.staged.staging import HalfOutcome, TransactionHold, TransactionId
from minimq_common.errors import InvalidArgument
from support.kernel_stores import TIMEOUT_S, numbered_batch
from support.stores import OpenStore, Stores

COMMITTED, ROLLED_BACK, EXPIRED = HalfOutcome


def test_a_number_belongs_to_one_producer(store: OpenStore) -> None:
    store.stage("@g", 1, "t", 0, numbered_batch(7, 0))
    with pytest.raises(InvalidArgument, match="begun by another producer"):
        store.stage("@g", 1, "t", 0, numbered_batch(8, 0))
    hold = TransactionHold(TransactionId("@g", 2))
    together = [store.submit("t", 0, numbered_batch(pid, 5), hold) for pid in (7, 8)]
    errors = [type(future.exception(TIMEOUT_S)) for future in together]
    assert errors == [type(None), InvalidArgument]


def test_the_latest_outcomes_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life_cycles.HalfMessages.__init__, "__defaults__", (5,))
    stores = Stores(tmp_path)
    store = stores.open()
    store.create_topic("t")
    for number in range(20):
        store.end_half("@g", number, ROLLED_BACK, batches=1)
    known = [number for number in range(20) if store.end_half("@g", number, COMMITTED) is ROLLED_BACK]
    assert known == [*range(15, 20)]
    store.close()
    again = stores.open()
    assert [number for number in range(20) if again.end_half("@g", number, COMMITTED) is ROLLED_BACK] == known
    again.end_half("@g", 20, ROLLED_BACK, batches=1)  # the oldest goes, also after a start
    assert again.end_half("@g", 15, COMMITTED) is None
    stores.close()


# ---- a model ------------------------------------------------------------------------------------------------
