"""The list of all commands says of each what its own help says."""

from __future__ import annotations

import click
from click.testing import CliRunner

from minimq.cli.main import _COMMANDS, main


def test_the_help_of_all_commands_loads_none_and_says_what_each_does() -> None:
    context = click.Context(main)
    for name, (_, text) in _COMMANDS.items():
        command = main.get_command(context, name)
        assert command is not None
        assert text.endswith("."), name
        if not isinstance(command, click.Group):
            assert command.get_short_help_str(100) == text, name
    shown = CliRunner().invoke(main, ["--help"], terminal_width=100).stdout
    assert [name for name in _COMMANDS if f"\n  {name} " not in shown] == []
