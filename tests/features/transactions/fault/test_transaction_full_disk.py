"""Transactions at a broker whose disk gets full between the decision and the publication."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from minimq import Admin, LocalCluster
from minimq_common.errors import StoreFull
from support.disks import disk_of
from support.kernel_stores import numbered_batch
from support.raw_transactions import RawTransactions, decision
from support.reading import check_brokers, read_all
from support.scraping import Scrape, metrics_address
from support.waiting import wait_until

pytestmark = pytest.mark.fault

BATCHES = 8
COMPLAINT = "failed, will try again"


@pytest.mark.parametrize(
    ("marks", "left", "reason"),
    [
        ({"disk_reject": 0.8}, 4 << 20, r"the disk of the broker is \d+\.\d% full.*--disk-reject"),
        ({}, BATCHES * 100_000, "the disk of the broker is full"),
    ],
    ids=["nearly full", "full"],
)
def test_what_is_decided_is_published_as_soon_as_there_is_space(
    tmp_path: Path, marks: dict[str, Any], left: int, reason: str
) -> None:
    options = {**marks, "upkeep_interval_s": 0.05, "metrics": "127.0.0.1:0", "log_format": "json"}
    bodies = [b"%d " % sequence + bytes(200_000) for sequence in range(BATCHES)]
    with disk_of(tmp_path / "disk", "32m") as disk:
        reserve = disk / "reserve"
        with (
            LocalCluster(brokers=1, data_dir=disk / "data", broker_options=options) as cluster,
            Admin(cluster.nameserver) as admin,
            RawTransactions(cluster.brokers[0].address) as transactions,
        ):
            [broker] = cluster.brokers
            admin.create_topic("t", queues=1)
            for sequence, body in enumerate(bodies):
                [answer] = transactions.stage(0, [(0, numbered_batch(7, sequence, body))])
                assert not answer.HasField("failure"), answer
            reserve.write_bytes(bytes(shutil.disk_usage(disk).free - left))
            wanted = decision(0, {broker.broker_name: {7: range(BATCHES)}})
            for _ in range(2):
                with pytest.raises(StoreFull, match=reason):
                    transactions.commit(wanted)
            about = transactions.describe()
            assert (about.decision, about.staged_batches) == (wanted, BATCHES)
            assert Scrape(metrics_address(broker.log_path)).value("minimq_broker_staged_batches") == BATCHES
            assert read_all(cluster.nameserver, "t") == []
            if marks:  # the log of the broker is on the same disk: on a full one it may not be written
                wait_until(lambda: COMPLAINT in broker.log_path.read_text(), 20.0, what="the broker says so")

            reserve.unlink()  # nobody asks again
            wait_until(lambda: not transactions.describe().staged_batches, 20.0, what="all is published")
            assert [message.body for message in read_all(cluster.nameserver, "t")] == bodies
            assert Scrape(metrics_address(broker.log_path)).value("minimq_broker_staged_batches") == 0
            assert broker.log_path.read_text().count(COMPLAINT) == 1 or not marks
        check_brokers(cluster)
