"""The metrics of a master about a slave that hangs while messages are sent."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from minimq.local.server_process import BrokerProcess
from support.kernel_stores import make_batch
from support.raw_sender import RawSender
from support.replicas import TIMEOUT_S, replicas, wait_caught_up, wait_in_sync
from support.scraping import Scrape, metrics_address
from support.waiting import wait_until

SHOWN: dict[str, Any] = {"metrics": "127.0.0.1:0", "log_format": "json"}
LEASE_S = 30.0


def wait_until_shown(broker: BrokerProcess, is_so: Callable[[Scrape], bool]) -> Scrape:
    """Return what a broker shows as soon as it is so."""
    address = metrics_address(broker.log_path)

    def look() -> Scrape | None:
        seen = Scrape(address)
        return seen if is_so(seen) else None

    seen = wait_until(look, TIMEOUT_S)
    assert seen is not None
    return seen


def behind(seen: Scrape) -> tuple[float, float]:
    """Return how many bytes the slave lacks, and how many are not confirmed."""
    lag = seen.value("minimq_broker_replica_lag_bytes", replica="1")
    return lag, seen.value("minimq_broker_unconfirmed_bytes")


def in_sync(seen: Scrape) -> float:
    return seen.value("minimq_broker_in_sync_replicas")


@pytest.mark.fault
def test_a_slave_that_hangs_is_seen_from_its_master(tmp_path: Path) -> None:
    batches = [(0, make_batch([b"%d" % number])) for number in range(10)]
    size = sum(len(data) for _, data in batches)
    with (
        replicas(tmp_path, lease_s=LEASE_S, role="sync-master", **SHOWN) as cluster,
        RawSender(cluster.brokers[0].address) as sender,
        ThreadPoolExecutor(1) as beside,
    ):
        master, slave = cluster.brokers
        wait_in_sync(cluster, master, slave)
        wait_caught_up(cluster)
        seen = wait_until_shown(master, lambda seen: behind(seen) == (0, 0))
        assert (in_sync(seen), seen.value("minimq_broker_min_in_sync_replicas")) == (2, 2)
        assert LEASE_S / 4 < seen.value("minimq_broker_lease_seconds") <= LEASE_S
        assert seen.value("minimq_broker_pending_bytes") == 0

        slave.pause()
        answers = beside.submit(sender.send, "t", batches)
        wait_until_shown(
            master,
            lambda seen: (
                seen.value("minimq_broker_pending_bytes") == size
                and min(behind(seen)) > size
                and len(set(behind(seen))) == 1  # nothing is confirmed that the slave does not have
            ),
        )

        seen = wait_until_shown(master, lambda seen: in_sync(seen) == 1)  # after a lag of five seconds
        assert seen.value("minimq_broker_replica_lag_seconds", replica="1") > 1
        assert seen.value("minimq_broker_replica_lag_bytes", replica="1") > size
        assert seen.value("minimq_broker_min_in_sync_replicas") == 2
        assert len(answers.result(TIMEOUT_S)) == len(batches)
        slave.resume()
        wait_until_shown(master, lambda seen: in_sync(seen) == 2 and behind(seen) == (0, 0))
