"""The feature that CONTRIBUTING.md adds to the client works, by the lines that the page prints alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import minimq
import minimq_common
from support.copied_packages import copy_package
from support.pages import ROOT, blocks_of

#: Of these, the feature may change lines; all other files are its own.
ASSEMBLY = {"common/minimq_common/model.py", "client/minimq/filters.py"}
FOLDER = "client/minimq/features/expiry/"
#: Sends a message that expires at once, one that expires later and one that does not, and prints what each kind of
#: consumer gets, in a whole group: nothing is left for another member.
PROGRAM = """
import sys, threading, time
from minimq import Admin, LocalCluster, Message, Producer, PullConsumer, PushConsumer, WorkQueueConsumer
import minimq.features.expiry

assert minimq.__file__.startswith(sys.argv[1])

def polled(nameserver, topic):
    with PullConsumer(nameserver, group="pull") as consumer:
        consumer.subscribe(topic)
        return [message.body for message in first(lambda: consumer.poll(1.0))]

def assigned(nameserver, topic):
    with PullConsumer(nameserver) as consumer, Admin(nameserver) as admin:
        consumer.assign([each.queue for each in admin.describe_topic(topic).queues])
        return [message.body for message in first(lambda: consumer.poll(1.0))]

def received(nameserver, topic):
    with WorkQueueConsumer(nameserver, group="work") as consumer:
        consumer.subscribe(topic)
        messages = first(lambda: consumer.receive(10, timeout=1.0))
        consumer.ack(messages)
        return [message.body for message in messages]

def heard(mode):
    def listen(nameserver, topic):
        bodies, done = [], threading.Event()
        def listener(messages):
            bodies.extend(message.body for message in messages)
            if len(bodies) >= 2:
                done.set()
        with PushConsumer(nameserver, group="heard-" + mode, mode=mode) as consumer:
            consumer.subscribe(topic)
            consumer.start(listener)
            assert done.wait(60), bodies
        return bodies
    return listen

def first(take):
    found = []
    while len(found) < 2:
        found += take()
    return found

with LocalCluster(brokers=1) as cluster, Producer(cluster.nameserver) as producer:
    for kind in (polled, assigned, received, heard("queues"), heard("work_queue")):
        topic = kind.__qualname__.split(".")[0] + str(id(kind))
        with Admin(cluster.nameserver) as admin:
            admin.create_topic(topic, queues=1)
        producer.send(Message(topic, b"old", expires_after_s=0.001))
        producer.send_many([Message(topic, b"new", expires_after_s=3600.0), Message(topic, b"plain")])
        time.sleep(0.01)
        print(topic, sorted(kind(cluster.nameserver, topic)))
"""


def changes() -> dict[str, list[tuple[str, str]]]:
    """Return the former and the new lines of each change, by file; a new file has no former lines."""
    [block] = blocks_of("CONTRIBUTING.md", "diff")
    found: dict[str, list[tuple[str, str]]] = {}
    for name, hunks in re.findall(r"^--- (\S+)\n(.*?)(?=^--- |\Z)", block, re.DOTALL | re.MULTILINE):
        for hunk in re.split(r"^@@\n", hunks, flags=re.MULTILINE):
            lines = hunk.splitlines(keepends=True)
            former = "".join(line[1:] for line in lines if line[0] != "+")
            found.setdefault(name, []).append((former, "".join(line[1:] for line in lines if line[0] != "-")))
    return found


def test_a_feature_touches_its_folder_and_the_assembly(tmp_path: Path) -> None:
    for package in (minimq, minimq_common):
        copy_package(package, tmp_path)
    for name, hunks in changes().items():
        assert name in ASSEMBLY or name.startswith(FOLDER), name
        path = tmp_path / name.partition("/")[2]
        assert path.exists() == (name in ASSEMBLY) == (ROOT / name).exists()
        path.parent.mkdir(exist_ok=True)
        text = path.read_text() if path.exists() else ""
        for former, new in hunks:
            assert not former or text.count(former) == 1, former
            text = text.replace(former, new) if former else new
        path.write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line.partition(" ")[2] for line in done.stdout.splitlines()]
    assert lines == ["[b'new', b'plain']"] * 5
