"""Ctrl-C that a program catches and goes on with: whatever it interrupts, no message is lost."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

import support
from minimq import Admin, LocalCluster, Message, Producer
from support.chance import SEED
from support.reading import read_all

PROGRAM = Path(support.__file__).with_name("interrupted_program.py")
CLOSER = PROGRAM.with_name("interrupted_close.py")
WORKER = PROGRAM.with_name("interrupted_worker.py")
INTERRUPTS = 2000
WORKED = 400
TIMEOUT_S = 60.0
#: Where a send is handed over to the event loop.
SENDERS = ("/sending/sender.py", "/sending/send_buffer.py", "/sending/bulk_send.py", "/connection/loop_thread.py")


needs_sound_locks = pytest.mark.skipif(
    sys.version_info[:2] == (3, 14),
    reason="a `with` that is interrupted may leave its lock taken: cpython issue 148874",
)


@pytest.mark.fault
@needs_sound_locks
def test_interrupted_sends_and_polls_lose_nothing(
    cluster: LocalCluster, admin: Admin, topic: str, new_name: Callable[[], str]
) -> None:
    """An interrupted send may be stored or not; a message of an interrupted poll comes with a later one."""
    group = new_name()
    arguments = [cluster.nameserver, topic, group, str(INTERRUPTS), str(SEED)]
    done = subprocess.run([sys.executable, str(PROGRAM), *arguments], capture_output=True, timeout=110, check=False)
    assert done.returncode == 0, (SEED, done.stderr.decode())
    assert b"never awaited" not in done.stderr
    found = json.loads(done.stdout)
    stored = [int(message.body) for message in read_all(cluster.nameserver, topic)]
    assert set(found["sent"]) <= set(stored), SEED
    assert len(stored) == len(set(stored)), SEED
    assert set(found["read"]) == set(stored), SEED
    assert min(found["interrupted_sends"], found["interrupted_polls"]) >= INTERRUPTS
    assert found["held"] == [0, 0], SEED
    assert admin.describe_group(group).lag == 0


@needs_sound_locks
def test_messages_taken_one_by_one_are_all_done_though_takes_are_interrupted(
    cluster: LocalCluster, admin: Admin, topic: str, new_name: Callable[[], str]
) -> None:
    group = new_name()
    with Producer(cluster.nameserver) as producer:
        producer.send_many([Message(topic, b"%d" % number) for number in range(WORKED)])
    arguments = [cluster.nameserver, topic, group, *map(str, (WORKED, INTERRUPTS, SEED))]
    done = subprocess.run([sys.executable, str(WORKER), *arguments], capture_output=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert b"never" not in done.stderr, done.stderr.decode()  # awaited, retrieved
    found = json.loads(done.stdout)
    assert set(found["received"]) == set(range(WORKED))
    assert found["interrupted"] > INTERRUPTS // 10
    assert admin.describe_group(group).lag == 0


@pytest.mark.parametrize("mode", ["queues", "work_queue"])
def test_closing_reports_that_it_waits_and_a_second_interrupt_ends_the_wait(
    cluster: LocalCluster, topic: str, new_name: Callable[[], str], mode: str
) -> None:
    with Producer(cluster.nameserver) as producer:
        producer.send_many(Message(topic, b"%d" % number) for number in range(10))
    arguments = [sys.executable, str(CLOSER), cluster.nameserver, topic, new_name(), mode]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as closing:
        assert closing.stdout is not None
        assert closing.stderr is not None
        assert closing.stdout.readline() == "listens\n"
        closing.send_signal(signal.SIGINT)
        assert "closes, and waits up to 29 s for the listener" in closing.stderr.readline()
        closing.send_signal(signal.SIGINT)
        told = closing.stderr.read()
        assert closing.wait(TIMEOUT_S) in (130, -signal.SIGINT)
    assert told.count("Traceback") == 1


def hand_in_by(send: str, producer: Producer, topic: str) -> Callable[[], object]:
    return {
        "send_async": lambda: producer.send_async(Message(topic, b"single")),
        "large": lambda: producer.send_async(Message(topic, bytes(1 << 18))),
        "send_many": lambda: producer.send_many([Message(topic, b"bulk")] * 3 + [Message(topic, b"spread")] * 97),
        "send_delayed": lambda: producer.send_many(
            [Message(topic, b"delayed", deliver_after_s=0.01), Message(topic, b"")]
        ),
    }[send]


@needs_sound_locks
@pytest.mark.parametrize("send", ["send_async", "large", "send_many", "send_delayed"])
def test_what_an_interrupted_send_has_handed_over_is_sent_at_once_and_nothing_else_keeps_room(
    cluster: LocalCluster, topic: str, send: str
) -> None:
    """Interrupt wherever the interpreter looks for signals: when a function begins, and when a call ends."""
    with Producer(cluster.nameserver, send_timeout_s=600.0) as producer:
        producer.send(Message(topic, b"the route is known"))
        hand_in = hand_in_by(send, producer, topic)
        points = 0
        while interrupted_at(points, hand_in):
            points += 1
            producer.flush(TIMEOUT_S)
            statistics = producer.statistics()
            assert (statistics.buffered_messages, statistics.buffered_bytes) == (0, 0), points
        assert points > 3


def is_handing_over(frame: FrameType, event: str) -> bool:
    """Tell whether a point is one at which Ctrl-C can come while a message or batch is handed over."""
    code = frame.f_code
    return event in ("call", "c_return") and code.co_filename.endswith(SENDERS)


def interrupted_at(
    point: int, call: Callable[[], object], is_point: Callable[[FrameType, str], bool] = is_handing_over
) -> bool:
    """Make a call, and raise KeyboardInterrupt at one of the points in the sender; return whether it came so far."""
    seen = 0

    def look(frame: FrameType, event: str, _: object) -> None:
        nonlocal seen
        if is_point(frame, event):
            seen += 1
            if seen == point + 1:
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(look)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False
