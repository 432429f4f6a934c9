"""The help of the command `minimq`."""

from __future__ import annotations

from collections.abc import Iterator

import click
from click.testing import CliRunner

from minimq.cli.main import main


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
