"""Messages that are taken one by one at a master that dies: its slave knows who has what."""

from __future__ import annotations

from pathlib import Path

import pytest

from minimq import Message, Producer
from minimq_proto.v1 import broker_pb2
from support.raw_popper import Popped, RawPopper
from support.replicas import replicas, wait_for_master, wait_in_sync


@pytest.mark.timeout(180)
def test_a_fail_over_frees_nothing_early_and_hands_nothing_out_again(tmp_path: Path) -> None:
    with replicas(tmp_path, role="sync-master") as cluster:
        master, slave = cluster.brokers
        wait_in_sync(cluster, master, slave)
        with Producer(cluster.nameserver) as producer:
            producer.send_many([Message("t", b"%d" % number) for number in range(1_000)])
        with RawPopper(master.address, "g", "a") as popper:
            held: list[list[Popped]] = []
            while messages := popper.take(100, invisible_s=3600):
                held.append(messages)
                if len(held) == 6:
                    break
            for messages in held[:3]:
                assert popper.settle(messages) == []
            assert popper.settle(held[3][:7], broker_pb2.POP_OUTCOME_FREE) == []
            freed = {message[:2] for message in held[3][:7]}
            del held[3][:7]
            master.kill()
        other = wait_for_master(cluster, master)
        with RawPopper(other.address, "g", "a") as popper:
            for messages in held[3:]:
                assert popper.settle(messages) == []  # it has them still
            taken = {message[:2] for messages in held for message in messages}
            while messages := popper.take(100, invisible_s=3600):
                places = {message[:2] for message in messages}
                assert not taken & places, "handed out again, or early"
                assert {message.tries for message in messages} == {2 if places <= freed else 1}
                taken |= places
                assert popper.settle(messages) == []
            assert len(taken) == 1_000
        master.start()
        wait_in_sync(cluster, other, master)
