"""A thousand tests that use the fixtures leave nothing: no topic, group, thread, file or process."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

_PROGRAM = """
import os, threading
from pathlib import Path
import pytest
from minimq import Message, Producer, PullConsumer

COUNT = {count}
WARM = 20
counted = {{}}


def counts(cluster, admin):
    servers = [server.pid for server in (*cluster.nameservers, *cluster.brokers)]
    return {{
        "topics": sum(not name.startswith("%") for name in admin.list_topics()),
        "groups": len(admin.list_groups()),
        "threads": threading.active_count(),
        "files": len(os.listdir("/proc/self/fd")),
        "files of servers": sum(len(os.listdir(f"/proc/{{pid}}/fd")) for pid in servers),
        "threads of servers": sum(len(os.listdir(f"/proc/{{pid}}/task")) for pid in servers),
        "processes": len(Path(f"/proc/self/task/{{os.getpid()}}/children").read_text().split()),
    }}


@pytest.mark.parametrize("number", range(COUNT))
def test_it(minimq_cluster, minimq_admin, minimq_topic, minimq_group, number):
    if number == WARM:
        counted.update(counts(minimq_cluster, minimq_admin))
    with Producer(minimq_cluster.nameserver) as producer:
        producer.send(Message(minimq_topic, b"%d" % number))
    with PullConsumer(minimq_cluster.nameserver, group=minimq_group, start="earliest") as consumer:
        consumer.subscribe(minimq_topic)
        while not (messages := consumer.poll(10)):
            pass
    assert [message.body for message in messages] == [b"%d" % number]


def test_nothing_is_left(minimq_cluster, minimq_admin, minimq_topic):
    for name, now in counts(minimq_cluster, minimq_admin).items():
        # Pools of threads grow to their size, and files of segments come and go; a leak shows in each test.
        most = counted[name] + (min(COUNT // 4, 20) if " of servers" in name or name == "files" else 2)
        assert now <= most, (name, counted, now)
"""


def _run(pytester: pytest.Pytester, count: int) -> None:
    pytester.makepyfile(_PROGRAM.format(count=count))
    options = ("-q", "-p", "no:minimq", "-p", "minimq.testing.plugin", "-p", "no:cacheprovider")
    pytester.runpytest_subprocess(*options).assert_outcomes(passed=count + 1)


@pytest.mark.slow
def test_many_tests_leave_nothing(pytester: pytest.Pytester) -> None:
    _run(pytester, 40)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_thousand_tests_leave_nothing(pytester: pytest.Pytester) -> None:
    _run(pytester, 1_000)
