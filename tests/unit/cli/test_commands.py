"""The texts and decisions of commands, without a server."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import click
import pytest
from click.testing import CliRunner

from minimq_cli.base import confirm
from minimq_cli.console import console
from minimq_cli.consume import _last_commit
from minimq_cli.local import Restarts
from minimq_cli.main import COMMANDS, main
from minimq_cli.produce import _Done
from minimq_common.errors import Unavailable


def test_each_command_is_summarized_in_whole_words_on_a_terminal_of_80_columns() -> None:
    for path in _groups(main, ()):
        shown = CliRunner().invoke(main, [*path, "--help"], terminal_width=80).stdout
        summaries = shown.partition("Commands:\n")[2].splitlines()
        assert summaries
        assert [line for line in summaries if line.endswith("...") or line.startswith("   ")] == [], path


def _groups(group: click.Group, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield path
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from _groups(command, (*path, name))


@pytest.mark.parametrize(
    ("typed", "error"), [(KeyboardInterrupt(), KeyboardInterrupt), (EOFError(), click.Abort), (["n"], click.Abort)]
)
def test_ctrl_c_at_a_question_is_an_interrupt_and_no_rejection(
    monkeypatch: pytest.MonkeyPatch, typed: Any, error: type[BaseException]
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("click.termui.visible_prompt_func", Mock(side_effect=typed))
    with pytest.raises(error):
        confirm("Delete it?", yes=False)


@pytest.mark.parametrize(("value", "port"), [("tcp://10.0.0.1:8080", 8088), ("8090", 8090)])
def test_a_variable_that_kubernetes_makes_of_a_service_is_no_port(
    value: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINIMQ_CONSOLE_PORT", value)
    own = copy.copy(console)  # click keeps the option for its help
    assert own.make_context("console", [], auto_envvar_prefix="MINIMQ_CONSOLE").params["port"] == str(port)


def test_the_help_of_all_commands_loads_none_and_says_what_each_does() -> None:
    context = click.Context(main)
    for name, (_, text) in COMMANDS.items():
        command = main.get_command(context, name)
        assert command is not None
        assert text.endswith("."), name
        if not isinstance(command, click.Group):
            assert command.get_short_help_str(100) == text, name
    shown = CliRunner().invoke(main, ["--help"], terminal_width=100).stdout
    assert [name for name in COMMANDS if f"\n  {name} " not in shown] == []


def test_the_usage_has_brackets_around_an_optional_argument() -> None:
    shown = CliRunner().invoke(main, ["dlq", "list", "--help"], prog_name="minimq").stdout
    assert shown.startswith("Usage: minimq dlq list [OPTIONS] [GROUP]\n")


LOST = "broker broker-a is not reached"


@contextmanager
def unreachable_at_the_end() -> Iterator[Any]:
    yield None
    raise Unavailable(LOST)


def test_a_failed_last_commit_says_that_written_messages_come_again() -> None:
    with pytest.raises(Unavailable) as raised, _last_commit(unreachable_at_the_end()):
        pass
    assert raised.value.message == (
        f"{LOST}; messages that were written since the last commit are not committed, and will be delivered again"
    )


def test_an_earlier_error_says_nothing_of_it() -> None:
    with pytest.raises(Unavailable) as raised, _last_commit(unreachable_at_the_end()):
        raise Unavailable("there is no master")
    assert raised.value.message == "there is no master"


@pytest.mark.parametrize(
    ("messages", "seconds", "text"),
    [
        (1, 1.0, "sent 1 message (100 B) to t in 1.00 s: 1 message/s, 100 B/s"),
        (3000, 2.0, "sent 3,000 messages (100 B) to t in 2.00 s: 1,500 messages/s, 50 B/s"),
    ],
)
def test_it_counts_one_message_as_one(messages: int, seconds: float, text: str) -> None:
    assert _Done(messages, 100).report("t", seconds) == text


def test_waits_grow_while_a_server_ends_soon_and_are_bounded() -> None:
    restarts = Restarts(first_s=1, most_s=5, calm_s=60)
    now, waits = 1000.0, []
    for _ in range(5):
        waits.append(restarts.ended(now))
        now += waits[-1]
        restarts.started(now)
        now += 2
    assert waits == [1, 2, 4, 5, 5]


def test_a_server_that_has_run_for_long_is_started_soon_again() -> None:
    restarts = Restarts(first_s=1, most_s=5, calm_s=60)
    for _ in range(3):
        restarts.ended(0)
        restarts.started(0)
    assert restarts.ended(61) == 1
