"""Transactions of a synchronous master that has too few replicas: they are not ended before there are enough again."""

from __future__ import annotations

from pathlib import Path

import pytest

from minimq_common.errors import NotEnoughReplicas
from support.raw_transactions import RawTransactions, decision
from support.reading import read_all
from support.replicas import replicas, wait_in_sync
from support.stores import numbered_batch


@pytest.mark.timeout(120)
def test_a_transaction_is_decided_and_published_at_enough_replicas(tmp_path: Path) -> None:
    with replicas(tmp_path, role="sync-master") as cluster:
        master, slave = cluster.brokers
        wait_in_sync(cluster, master, slave)
        with RawTransactions(master.address) as transactions:
            transactions.stage(0, [(queue, numbered_batch(7, queue, b"%d" % queue)) for queue in (0, 1)])
            slave.kill()
            wait_in_sync(cluster, master)
            [refused] = transactions.stage(0, [(0, numbered_batch(7, 2))])
            assert refused.failure.code == NotEnoughReplicas.code
            wanted = decision(0, {master.broker_name: {7: [0, 1]}})
            with pytest.raises(NotEnoughReplicas, match="1 replicas of broker-a are in sync, and 2 are needed"):
                transactions.commit(wanted)
            about = transactions.describe()
            assert not about.HasField("decision")
            assert about.staged_batches == 2
            slave.start()
            wait_in_sync(cluster, master, slave)
            assert transactions.commit(wanted) == wanted
            assert sorted(message.body for message in read_all(cluster.nameserver, "t")) == [b"0", b"1"]
