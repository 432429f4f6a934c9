"""The texts and decisions of commands, without a server."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import click
import pytest
from click.testing import CliRunner

from minimq_cli.base import confirm
from minimq_cli.console import console
from minimq_cli.main import COMMANDS, main


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
