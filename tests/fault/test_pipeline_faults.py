"""A pipeline has the effect of each message exactly once, whatever becomes of its workers and brokers.

The first tests are short runs of `bench/transaction_faults.py`, which says what is checked.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minimq import Admin, LocalCluster, Message, Producer, PullConsumer
from minimq.errors import Fenced, SendFailed
from support.chance import SEED, rounds
from support.process import process

pytestmark = [pytest.mark.fault, pytest.mark.rounds]

ROUNDS = rounds(4)
SCRIPT = Path(__file__).parents[2] / "bench" / "transaction_faults.py"


def run(scenario: str) -> dict[str, Any]:
    print(f"MINIMQ_TEST_SEED={SEED} MINIMQ_TEST_ROUNDS={ROUNDS}")
    options = (f"--scenario={scenario}", f"--rounds={ROUNDS}", "--rate=100", f"--seed={SEED}")
    with process(sys.executable, str(SCRIPT), *options) as started:
        told, errors = started.communicate()
    assert told, errors
    found: dict[str, Any] = json.loads(told)
    print(found, errors)
    assert found["sent"] > 20
    assert found["transactions"] > 0
    return found


def assert_sound(found: dict[str, Any]) -> None:
    wrong = {kind: found[kind] for kind in ("lost", "twice", "torn", "damaged")}
    assert wrong == dict.fromkeys(wrong, 0), found["examples"]


@pytest.mark.timeout(150 + 20 * ROUNDS)
@pytest.mark.parametrize("scenario", ["kill", "popped-failover"])
def test_nothing_is_lost_or_twice_though_workers_and_brokers_die(scenario: str) -> None:
    assert_sound(run(scenario))


@pytest.mark.long
@pytest.mark.timeout(150 + 20 * ROUNDS)
@pytest.mark.parametrize("scenario", ["failover", "hang", "popped-kill", "popped-hang"])
def test_nothing_is_lost_or_twice(scenario: str) -> None:
    assert_sound(run(scenario))


@pytest.mark.long
@pytest.mark.timeout(150 + 20 * ROUNDS)
def test_work_without_transactions_is_found_out() -> None:
    """The check can fail."""
    assert run("careless")["twice"] > 0


ZOMBIE = """
import pathlib, sys, time
from minimq import Message, Producer, PullConsumer
from minimq.errors import Fenced
with PullConsumer(sys.argv[1], group="g", auto_commit=False) as consumer, Producer(sys.argv[1]) as producer:
    consumer.subscribe("source")
    try:
        with producer.transaction(consumer) as tx:
            messages = tx.receive(30)
            tx.send(Message("target", b"late"))
            print(len(messages), flush=True)
            while not pathlib.Path(sys.argv[2]).exists():
                time.sleep(0.01)
    except Fenced:
        print("fenced", flush=True)
"""


@pytest.fixture
def short_sessions() -> Iterator[LocalCluster]:
    options: dict[str, object] = {"session_grace_s": 0.5, "session_timeout_s": 1.0}
    with LocalCluster(brokers=1, broker_options=options) as cluster:
        with Admin(cluster.nameserver) as admin:
            for topic in ("source", "target"):
                admin.create_topic(topic, queues=1)
        yield cluster


@pytest.mark.timeout(90)
def test_a_member_that_was_stopped_and_whose_lease_went_on_is_fenced(
    short_sessions: LocalCluster, tmp_path: Path
) -> None:
    nameserver, go_on = short_sessions.nameserver, tmp_path / "go-on"
    with Producer(nameserver) as producer, process(sys.executable, "-c", ZOMBIE, nameserver, str(go_on)) as zombie:
        producer.send(Message("source", b"1"))
        assert zombie.stdout is not None
        assert zombie.stdout.readline().strip() == "1"
        zombie.send_signal(signal.SIGSTOP)
        with PullConsumer(nameserver, group="g", auto_commit=False) as consumer:
            consumer.subscribe("source")
            done = False
            while not done:
                with producer.transaction(consumer) as tx:
                    done = bool(tx.receive(1.0))
                    if done:
                        tx.send(Message("target", b"in time"))
        go_on.touch()
        zombie.send_signal(signal.SIGCONT)
        assert zombie.stdout.readline().strip() == "fenced"
        assert producer.send(Message("target", b"next")).queue_offset == 1


@pytest.mark.timeout(90)
def test_of_a_client_that_dies_within_the_block_nothing_is_stored(short_sessions: LocalCluster) -> None:
    nameserver = short_sessions.nameserver
    with Producer(nameserver) as producer:
        producer.send(Message("source", b"1"))
        with process(sys.executable, "-c", ZOMBIE, nameserver, "/nowhere") as victim:
            assert victim.stdout is not None
            assert victim.stdout.readline().strip() == "1"
            victim.kill()
            victim.wait()
        with PullConsumer(nameserver, group="g", auto_commit=False) as consumer:
            consumer.subscribe("source")
            found: list[bytes] = []
            while not found:
                with producer.transaction(consumer) as tx:
                    found = [message.body for message in tx.receive(1.0)]
        assert found == [b"1"]
        assert producer.send(Message("target", b"first")).queue_offset == 0


@pytest.mark.timeout(90)
def test_a_commit_without_an_answer_is_said_to_be_in_doubt_and_is_not_repeated(short_sessions: LocalCluster) -> None:
    """The broker hangs for all the time of a commit. Later it may store it: the group then goes on behind it."""
    nameserver, broker = short_sessions.nameserver, short_sessions.brokers[0]
    with (
        Producer(nameserver, send_timeout_s=2.0) as producer,
        PullConsumer(nameserver, group="g", auto_commit=False) as consumer,
    ):
        producer.send_many(Message("source", b"%d" % number) for number in range(10))
        consumer.subscribe("source")
        with producer.transaction() as tx:  # without a connection it would be certain that nothing was stored
            tx.send(Message("target", b"before"))
        done = 0
        said: list[str] = []
        paused = False
        while done < 10:
            try:
                with producer.transaction(consumer) as tx:
                    messages = tx.receive(1.0)
                    for message in messages:
                        tx.send(Message("target", message.body))
                    if messages and not paused:
                        paused = True
                        broker.pause()
            except SendFailed as error:
                said.append(error.message)
                broker.resume()
            except Fenced:
                pass  # it was stored after the consumer had gone back
            except Exception:
                broker.resume()
                raise
            with Admin(nameserver) as admin:
                done = sum(each.committed_offset or 0 for each in admin.describe_group("g").queues)
        assert len(said) == 1
        assert "it may be stored, as a whole" in said[0]
        assert producer.send(Message("target", b"next")).queue_offset == 11
