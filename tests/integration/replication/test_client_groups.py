"""Members of a group go on when there is a master again: nothing twice, nothing left out."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from minimq import LocalCluster, MessageQueue, MinimqError, PullConsumer, PushConsumer, ReceivedMessage
from support.client_replicas import bring_back, ends, leave_slaves_alone, members_at, send
from support.listening import Answer, Listener
from support.members import Log
from support.replicas import TIMEOUT_S, replicas, wait_caught_up, wait_for_master, wait_in_sync
from support.waiting import wait_until


class Members:
    """Two members that read as much as they are told to, and commit what they have read at once."""

    def __init__(self, nameserver: str, request_timeout_s: float) -> None:
        self._request_timeout_s = request_timeout_s
        self.log = Log()
        self.errors: list[MinimqError] = []
        self._allowed = 0
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(nameserver,)) for _ in range(2)]
        for thread in self._threads:
            thread.start()

    def read(self, count: int) -> None:
        """Return when so many messages have been read in all; only little more is read by itself."""
        self._allowed = count
        wait_until(
            lambda: len(self.log) >= count or self.errors, TIMEOUT_S, what=f"{count} messages; read: {len(self.log)}"
        )
        assert self.errors == []

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _run(self, nameserver: str) -> None:
        try:
            with PullConsumer(
                nameserver,
                group="g",
                auto_commit=False,
                start="earliest",
                prefetch_bytes=1000,
                request_timeout_s=self._request_timeout_s,
            ) as consumer:
                consumer.subscribe("t")
                while not self._ended.is_set():
                    if len(self.log) >= self._allowed:
                        self._ended.wait(0.02)
                        continue
                    messages = consumer.poll(0.1, max_messages=10)
                    for message in messages:
                        self.log.add(message.queue, message.queue_offset)
                    if messages:
                        consumer.commit()
        except MinimqError as error:
            self.errors.append(error)


@contextmanager
def members(cluster: LocalCluster, request_timeout_s: float = TIMEOUT_S) -> Iterator[Members]:
    """Two members of the group "g" beside the block."""
    group = Members(cluster.nameserver, request_timeout_s)
    try:
        yield group
    finally:
        group.end()


def check_all_read_once(group: Members, stored: dict[MessageQueue, int]) -> None:
    assert group.errors == []
    assert group.log.repeated == {}
    assert group.log.missing({(queue, offset) for queue, end in stored.items() for offset in range(end)}) == set()


@pytest.mark.replaced_by("contract")
@pytest.mark.fault
@pytest.mark.timeout(120)
def test_a_group_goes_on_at_the_new_master(tmp_path: Path) -> None:
    with replicas(tmp_path, slaves=2, role="sync-master") as cluster:
        master = wait_for_master(cluster)
        send(cluster, 300)
        with members(cluster) as group:
            group.read(100)
            master.kill()
            successor = wait_for_master(cluster, master)
            send(cluster, 50)
            group.read(350)
            wait_until(lambda: members_at(successor, "g") == 2, TIMEOUT_S, what="both members are at the new master")
            check_all_read_once(group, ends(cluster))
        master.start()
        wait_in_sync(cluster, *cluster.brokers)
        wait_caught_up(cluster)


@pytest.mark.fault
@pytest.mark.timeout(120)
def test_a_group_leaves_a_master_that_hangs_as_soon_as_there_is_another(tmp_path: Path) -> None:
    with replicas(tmp_path, slaves=2, role="sync-master") as cluster:
        master = wait_for_master(cluster)
        send(cluster, 300)
        with members(cluster, request_timeout_s=4.0) as group:
            group.read(100)
            master.pause()
            successor = wait_for_master(cluster, master)
            send(cluster, 50)
            wait_until(lambda: members_at(successor, "g") == 2, TIMEOUT_S / 2, what="both are at the new master")
            group.read(350)
            check_all_read_once(group, ends(cluster))
        master.resume()
        wait_in_sync(cluster, *cluster.brokers)
        wait_caught_up(cluster)


@pytest.mark.fault
@pytest.mark.timeout(120)
def test_a_listener_gets_everything_once_although_there_is_no_master_for_a_while(tmp_path: Path) -> None:
    with replicas(tmp_path, nameservers=2) as cluster:
        send(cluster, 200)
        wait_caught_up(cluster)
        listener = Listener()
        half = threading.Event()

        def hold_after_half(messages: list[ReceivedMessage]) -> Answer:
            answer = listener(messages)
            if len(listener.calls) >= 100:
                half.wait(TIMEOUT_S)
            return answer

        with PushConsumer(cluster.nameserver, group="g", start="earliest", prefetch_bytes=1000, threads=2) as consumer:
            consumer.subscribe("t")
            consumer.start(hold_after_half)
            wait_until(lambda: len(listener.calls) >= 100, TIMEOUT_S)
            leave_slaves_alone(cluster)
            half.set()
            bring_back(cluster)
            wait_until(lambda: len(listener.calls) == 200, TIMEOUT_S, what=f"all of them; {len(listener.calls)}")
            send(cluster, 10)
            wait_until(lambda: sum(listener.calls.values()) >= 210, TIMEOUT_S, what="those that came later")
        assert sum(listener.calls.values()) == 210
        wait_caught_up(cluster)
