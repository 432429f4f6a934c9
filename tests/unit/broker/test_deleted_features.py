"""A broker whose source lacks a feature: all other modules import, and a store keeps messages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.deleted_features import DELETABLE, copy_without

_PROGRAM = """
import pkgutil, sys, threading
from importlib import import_module
from pathlib import Path

import minimq_broker
from minimq_broker import assembly
from minimq_broker.commit.jobs import AppendJob, FactJob
from minimq_broker.commit.store import Store, StoreOptions
from minimq_broker.log.rows import ReadLimits
from minimq_broker.state.facts import Topic, TopicSet
from minimq_broker.state.queue_ends import QueueKey
from minimq_common.batch.builder import encode
from minimq_common.batch.header import read_header
from minimq_common.model import Message

assert minimq_broker.__file__.startswith(sys.argv[1])
for module in pkgutil.walk_packages(minimq_broker.__path__, "minimq_broker."):
    if not module.name.endswith("__main__"):
        import_module(module.name)


def opened():
    answered.clear()
    return Store(Path(sys.argv[1]) / "data", notify, StoreOptions(), lambda: 1)


def notify(jobs, grown):
    for job in jobs:
        assert job.error is None, job.error
        job.done(job)


def do(store, job):
    answered.clear()
    job.done = lambda _: answered.set()
    store.writer.submit(job)
    assert answered.wait(20)


answered = threading.Event()
store = opened()
do(store, FactJob(lambda state: TopicSet(Topic("t", 1, 1, 1))))
data = encode([Message("t", b"kept")], 1, 7, 0, 1 << 20, None)
do(store, AppendJob("t", 0, data, read_header(data)))
store.close()
store = opened()
[batch], _ = store.search(QueueKey(1, 0), 0, ReadLimits(10, 1 << 20))
assert bytes(batch.data) == data
store.close()
"""


@pytest.mark.parametrize("name", DELETABLE)
def test_a_broker_works_without_the_feature(name: str, tmp_path: Path) -> None:
    copy_without(tmp_path, name)
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
