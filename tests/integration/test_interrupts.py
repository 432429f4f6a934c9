"""Ctrl-C that a program catches and goes on with: whatever it interrupts, no message is lost."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import support
from minimq import Admin, LocalCluster, Message, Producer
from minimq.connection.loop_call import LoopCall
from minimq.sending.sender import Sender
from support.chance import SEED

PROGRAM = Path(support.__file__).with_name("interrupted_consumer.py")
MESSAGES = 1800
INTERRUPTS = 1000
PATIENCE_S = 20.0


@pytest.mark.skipif(
    sys.version_info[:2] == (3, 14),
    reason="a `with` that is interrupted may leave its lock taken: cpython issue 148874",
)
def test_polls_that_return_have_all_messages_though_others_are_interrupted(
    cluster: LocalCluster, admin: Admin, topic: str, new_name: Callable[[], str]
) -> None:
    group = new_name()
    with Producer(cluster.nameserver) as producer:
        for start in range(0, MESSAGES, 20):  # many batches, so that there is much to interrupt
            producer.send_many([Message(topic, b"%d" % number) for number in range(start, start + 20)])
    arguments = [cluster.nameserver, topic, group, *map(str, (MESSAGES, INTERRUPTS, SEED))]
    done = subprocess.run([sys.executable, str(PROGRAM), *arguments], capture_output=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert b"never awaited" not in done.stderr
    found = json.loads(done.stdout)
    assert set(found["read"]) == set(range(MESSAGES))
    assert found["interrupted"] > INTERRUPTS // 10
    assert sum(offset or 0 for offset in admin.committed_offsets(group, topic).values()) == MESSAGES


def test_a_call_that_is_interrupted_before_it_begins_leaves_no_coroutine(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LoopCall, "begin", interrupted)
    nobody = "127.0.0.1:9"
    with warnings.catch_warnings(record=True) as told, Admin(nobody) as admin, Producer(nobody) as producer:
        warnings.simplefilter("always")
        for call in (admin.list_topics, admin.conflicts, lambda: producer.send(Message("orders", b"x"))):
            with pytest.raises(KeyboardInterrupt):
                call()
        gc.collect()
    assert [str(warning.message) for warning in told] == []


def test_send_many_that_is_interrupted_before_the_sender_knows_of_a_batch_ends(
    cluster: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    def send() -> None:
        with suppress(KeyboardInterrupt), Producer(cluster.nameserver, close_timeout_s=0.1) as producer:
            producer.send_many([Message(topic, b"x")] * 300)

    monkeypatch.setattr(Sender, "send_batch", interrupted)
    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    sending.join(PATIENCE_S)
    assert not sending.is_alive()
