"""The usage of the command `minimq`: places of options, questions, completion by a shell."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from functools import partial

import pytest
from click.shell_completion import ShellComplete, get_completion_class
from click.testing import CliRunner, Result

from minimq.admin.admin import Admin
from minimq.consumer import PullConsumer
from minimq.local.local_cluster import LocalCluster
from minimq.local.server_process import free_port
from minimq.producer import Producer
from minimq_cli.main import main
from minimq_common.model import Message
from support.cases import for_each
from support.command import COMMAND, Minimq, environment
from support.console_actions import make_dead_letters
from support.server_copies import CommandCopy

NOBODY = f"127.0.0.1:{free_port()}"


@pytest.fixture
def minimq(cluster: LocalCluster) -> Callable[..., Result]:
    """Run the command in this process; its stdin is no terminal."""
    return lambda *arguments: CliRunner(env={"MINIMQ_NAMESERVER": cluster.nameserver}).invoke(main, arguments)


# ---- Where the name server stands, and what is misspelled ---------------------------------------


@pytest.mark.parametrize("place", range(4))
def test_the_name_server_may_stand_anywhere(cluster: LocalCluster, topic: str, place: int) -> None:
    arguments = ["topic", "describe", topic]
    arguments[place:place] = ["-s", cluster.nameserver]
    result = CliRunner(env={"MINIMQ_NAMESERVER": NOBODY}).invoke(main, [*arguments, "--output", "json"])
    assert json.loads(result.stdout)["topic"] == topic


@for_each(
    ("variable", "arguments", "said"),
    [
        ("MINIMQ_NAMESERVER", ["topic", "list"], "no name server is given: write HOST:PORT"),
        ("MINIMQ_NAMESERVER", ["group", "delete", "g", "--yes"], "no name server is given: write HOST:PORT"),
        ("MINIMQ_TOPIC_CREATE_QUEUES", ["topic", "create", "t"], "--queues is ''"),
        ("MINIMQ_CONSUME_FROM", ["consume", "t", "--group", "g"], "''"),
        ("MINIMQ_LOCAL_DATA_DIR", ["local"], "the name of the folder is empty"),
    ],
)
def test_an_empty_variable_is_an_empty_value_and_not_the_default(
    variable: str, arguments: list[str], said: str
) -> None:
    rejected = CliRunner(env={"MINIMQ_NAMESERVER": NOBODY, variable: ""}).invoke(main, arguments)
    assert rejected.exit_code == 2
    assert said in rejected.stderr


@for_each(
    ("option", "arguments"),
    [
        ("--since", ["message", "find", "t", "--key", "k", "--since", "soon"]),
        ("--until", ["message", "find", "t", "--key", "k", "--until", "soon"]),
        ("--since", ["message", "trace", "t/broker-a/0@1", "--since", "soon"]),
        ("--since", ["delayed", "list", "--topic", "t", "--since", "soon"]),
        ("--until", ["dlq", "describe", "g", "--until", "soon"]),
        ("--from", ["peek", "t", "--from", "soon"]),
    ],
)
def test_a_time_that_cannot_be_read_is_an_error_about_its_option(option: str, arguments: list[str]) -> None:
    rejected = CliRunner(env={"MINIMQ_NAMESERVER": NOBODY}).invoke(main, arguments)
    assert rejected.exit_code == 2
    assert rejected.stderr.startswith(f"error: {option} is 'soon'")


# ---- What is deleted, and what is written into --------------------------------------------------


def test_a_person_is_asked_before_a_topic_is_deleted(cluster: LocalCluster, admin: Admin, topic: str) -> None:
    with Producer(cluster.nameserver) as producer:
        producer.send(Message(topic, b"precious"))
    delete = partial(Minimq(cluster.nameserver).on_terminal, "topic", "delete", topic)
    status, said = delete(answer=b"n\n")
    assert f"messages of {topic} on broker-a" in said
    assert f"Delete topic {topic}? [y/N]" in said
    assert status == 1
    assert admin.describe_topic(topic).messages == 1
    status, said = delete(answer=b"y\n")
    assert status == 0
    assert topic not in [route.topic for route in admin.routes()]


def test_a_person_is_asked_before_what_cannot_be_taken_back(
    cluster: LocalCluster, admin: Admin, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer(cluster.nameserver) as producer:
        sent = producer.send(Message(topic, b"later", deliver_after_s=86_400, recallable=True))
        make_dead_letters(cluster, producer, topic, topic, 1)
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)
    for command, asked in (
        (("delayed", "recall", str(sent.recall_handle)), "Recall "),
        (("dlq", "delete", topic, "--all"), "Delete "),
        (("group", "delete", topic), "Delete group "),
    ):
        declined = CliRunner().invoke(main, ["-s", cluster.nameserver, *command], input="n\n")
        assert declined.exit_code == 1, command
        assert re.search(rf"(?m)^{asked}.*\? \[y/N\]", declined.output), command
    assert [each.messages for each in admin.delayed_totals([topic])] == [1]
    assert len(list(admin.dead_letters(topic))) == 1


# ---- Where a group would go on ------------------------------------------------------------------


# ---- Lines of JSON ------------------------------------------------------------------------------


def test_lines_of_json_are_the_items_of_a_list_or_the_one_result(
    minimq: Callable[..., Result], cluster: LocalCluster, admin: Admin, topic: str
) -> None:
    described = ("topic", "describe", topic, "--output")
    for command in (("topic", "list", "--output"), ("topic", "create", f"{topic}2", "--dry-run", "--output")):
        lines = minimq(*command, "jsonl").stdout.splitlines()
        assert [json.loads(line) for line in lines] == json.loads(minimq(*command, "json").stdout)
    [line] = minimq(*described, "jsonl").stdout.splitlines()
    assert json.loads(line) == json.loads(minimq(*described, "json").stdout)
    assert json.loads(line)["topic"] == topic


# ---- Completion ---------------------------------------------------------------------------------


def completed(nameserver: str, *words: str) -> list[str]:
    *before, begun = words
    shell = get_completion_class("bash")
    assert shell is not None
    made: ShellComplete = shell(main, {}, "minimq", "_MINIMQ_COMPLETE")
    return [item.value for item in made.get_completions(["-s", nameserver, *before], begun)]


def test_topics_and_groups_are_completed(cluster: LocalCluster, admin: Admin, topic: str) -> None:
    with PullConsumer(cluster.nameserver, group=topic, auto_commit=False) as consumer:
        consumer.assign(queues := admin.route(topic).read_queues())
        consumer.commit(dict.fromkeys(queues, 0))
    for words in (["topic", "describe"], ["topic", "delete"], ["consume"], ["produce"], ["peek"], ["route"]):
        assert completed(cluster.nameserver, *words, topic[:-1]) == [topic]
    for words in (["group", "describe"], ["group", "reset-offset"], ["consume", "x", "--group"]):
        assert completed(cluster.nameserver, *words, topic[:-1]) == [topic]
    assert completed(cluster.nameserver, "group", "reset-offset", topic, topic[:-1]) == [topic]
    assert completed(NOBODY, "topic", "describe", "-s", cluster.nameserver, topic[:-1]) == [topic]


def test_brokers_are_completed_with_credentials() -> None:
    with LocalCluster(brokers=2, secure=True) as secured:
        given = (secured.nameserver, "--credentials", str(secured.credentials))
        for words in (["cluster", "permission"], ["cluster", "promote"], ["topic", "create", "x", "--broker"]):
            assert completed(*given, *words, "br") == ["broker-a", "broker-b"]


# ---- Output that goes nowhere -------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [("--help",), ("topic", "list"), ("cluster", "status", "--output", "json")])
def test_what_cannot_be_written_is_told_in_one_line_and_a_reader_that_has_exited_knows(
    cluster: LocalCluster, topic: str, arguments: tuple[str, ...]
) -> None:
    assert topic

    def run(stdout: int) -> tuple[int, bytes]:
        variables = environment(MINIMQ_NAMESERVER=cluster.nameserver)
        with CommandCopy([*COMMAND, *arguments], env=variables, stdout=stdout, stderr=subprocess.PIPE) as command:
            _, said = command.communicate(timeout=60)
        return command.returncode, said

    full = os.open("/dev/full", os.O_WRONLY)
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert run(full) == (1, b"error: cannot write the output: No space left on device\n")
        assert run(writer) == (1, b"")
    finally:
        os.close(full)
        os.close(writer)
