"""The fixtures that users have for tests of their own programs, in runs of pytest like theirs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

#: The module itself, also where minimq is installed, which would bring it under this name.
_WITH_FIXTURES = ("-p", "no:minimq", "-p", "minimq.testing.plugin", "-p", "no:cacheprovider")

_PROGRAM = """
from minimq import Message, Producer, PullConsumer

def send(nameserver, topic, body):
    with Producer(nameserver) as producer:
        producer.send(Message(topic, body))

def receive(nameserver, topic, group):
    with PullConsumer(nameserver, group=group, start="earliest") as consumer:
        consumer.subscribe(topic)
        while not (messages := consumer.poll(10)):
            pass
        return [message.body for message in messages]
"""


@pytest.fixture
def users(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(program=_PROGRAM)
    return pytester


def test_each_test_has_a_topic_and_a_group_of_its_own(users: pytest.Pytester) -> None:
    users.makepyfile(
        """
        import pytest
        from program import receive, send

        names = set()

        @pytest.mark.parametrize("number", range(3))
        def test_it(minimq_nameserver, minimq_topic, minimq_group, number):
            names.update((minimq_topic, minimq_group))
            send(minimq_nameserver, minimq_topic, b"%d" % number)
            assert receive(minimq_nameserver, minimq_topic, minimq_group) == [b"%d" % number]

        def test_several(minimq_new_topic, minimq_new_group):
            names.update((minimq_new_topic(queues=1), minimq_new_topic(fifo=True), minimq_new_group()))

        def test_nothing_is_left(minimq_admin):
            assert len(names) == 9
            assert not names & set(minimq_admin.list_topics())
            assert not names & set(minimq_admin.list_groups())
        """
    )
    users.runpytest_subprocess(*_WITH_FIXTURES).assert_outcomes(passed=5)


def test_the_page_about_testing_runs(users: pytest.Pytester) -> None:
    page = Path(__file__).parents[2].joinpath("docs/testing.md").read_text()
    program, options = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    users.makepyfile(test_page=program)
    users.makeconftest(options)
    users.runpytest_subprocess(*_WITH_FIXTURES).assert_outcomes(passed=2)


@pytest.mark.slow
def test_the_next_test_finds_all_servers_running(users: pytest.Pytester) -> None:
    users.makepyfile(
        """
        import pytest
        from minimq.errors import MinimqError
        from program import send

        @pytest.fixture(scope="session")
        def minimq_cluster_options():
            return {"brokers": 2}

        @pytest.mark.parametrize("fault", ["kill", "stop", "pause"])
        def test_a_fault(minimq_cluster, minimq_topic, fault):
            for server in (*minimq_cluster.brokers, *minimq_cluster.nameservers):
                getattr(server, fault)()

        def test_all_run(minimq_cluster, minimq_topic):
            assert len(minimq_cluster.brokers) == 2
            assert all(server.running and not server.paused for server in minimq_cluster.brokers)
            send(minimq_cluster.nameserver, minimq_topic, b"there")
        """
    )
    users.runpytest_subprocess(*_WITH_FIXTURES).assert_outcomes(passed=4)


def test_a_failure_shows_what_servers_have_logged_meanwhile(
    users: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINIMQ_CREDENTIALS", "of-another-cluster.minimq")  # which the fixtures do not use
    users.makepyfile(
        """
        def test_before(minimq_admin):
            minimq_admin.create_topic("before")

        def test_failure(minimq_admin):
            minimq_admin.create_topic("meanwhile")
            assert False
        """
    )
    result = users.runpytest_subprocess(*_WITH_FIXTURES)
    result.assert_outcomes(passed=1, failed=1)
    shown = result.stdout.str()
    assert re.search(r"-- log of minimq broker-a --.*meanwhile", shown, re.DOTALL), shown
    assert "topic=before" not in shown
