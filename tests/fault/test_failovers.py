"""Replicas that are killed, paused and started again at random, their controller as well, while messages are sent."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from minimq import LocalCluster, Message, Producer
from minimq.local.server_process import ServerProcess
from minimq_common.errors import MinimqError
from support.chance import SEED, rounds
from support.reading import read_all
from support.replicas import TIMEOUT_S, find_master, replicas, wait_caught_up, wait_in_sync
from support.waiting import wait_until

ROUNDS = rounds(2)


class Sender(threading.Thread):
    """Sends batches, and knows which were acknowledged."""

    def __init__(self, nameserver: str, name: str) -> None:
        super().__init__(name=name)
        self.acknowledged: set[bytes] = set()
        self.sent: set[bytes] = set()
        self.failure: MinimqError | None = None
        self.ended = threading.Event()
        self._nameserver = nameserver

    def run(self) -> None:
        number = 0
        with Producer(self._nameserver, send_timeout_s=20.0) as producer:
            while not self.ended.is_set():
                bodies = [b"%s/%d" % (self.name.encode(), number + at) for at in range(20)]
                number += 20
                self.sent.update(bodies)
                futures = [(body, producer.send_async(Message("t", body))) for body in bodies]
                for body, future in futures:
                    try:
                        future.result()
                        self.acknowledged.add(body)
                    except MinimqError as error:
                        self.failure = error

    def wait_for_more(self) -> None:
        enough = len(self.acknowledged) + 40
        wait_until(lambda: len(self.acknowledged) >= enough, 2 * TIMEOUT_S, what=f"sends; {self.failure}")


def disturb(cluster: LocalCluster, chance: random.Random) -> list[str]:
    """Do something to one or two servers, and undo it after a while."""
    servers: list[ServerProcess] = [*cluster.brokers, *cluster.nameservers]
    master = find_master(cluster)
    weights = [3 if server is master else 1 for server in servers]
    done: list[str] = []
    undo: list[Callable[[], None]] = []
    for server in {*chance.choices(servers, weights, k=chance.choice((1, 1, 2)))}:
        how = chance.choice(("kill", "pause", "stop", "restart"))
        done.append(f"{how} {server.name}")
        getattr(server, how)()
        undo.append(server.resume if how == "pause" else server.start)
        time.sleep(chance.choice((0.0, 0.1, 1.0)))
    time.sleep(chance.choice((0.0, 0.3, 2.5, 5.0)))
    for step in undo:
        step()
    return done


@pytest.mark.fault
@pytest.mark.rounds
@pytest.mark.timeout(600 + 60 * ROUNDS)
def test_nothing_acknowledged_is_lost_whatever_happens_to_the_replicas(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    history: list[str] = []
    with replicas(tmp_path, slaves=2, role="sync-master", segment_bytes=1 << 18, upkeep_interval_s=0.5) as cluster:
        senders = [Sender(cluster.nameserver, f"sender-{number}") for number in range(2)]
        for sender in senders:
            sender.start()
        try:
            for _ in range(ROUNDS):
                history += disturb(cluster, chance)
                print(SEED, history[-2:])
                for sender in senders:
                    sender.wait_for_more()
        finally:
            for sender in senders:
                sender.ended.set()
            for sender in senders:
                sender.join()
        wait_in_sync(cluster, *cluster.brokers)
        wait_caught_up(cluster)
        stored = [message.body for message in read_all(cluster.nameserver, "t")]
        for sender in senders:
            missing = sender.acknowledged - set(stored)
            assert not missing, (SEED, history, sorted(missing)[:5])
        assert len(stored) == len(set(stored)), (SEED, history)
        assert set(stored) <= set().union(*(sender.sent for sender in senders)), (SEED, history)
