"""The command `minimq` as a process of its own, or in this one where a process would only cost its start."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from click.testing import CliRunner

from minimq_cli.main import main
from support.server_copies import CommandCopy

COMMAND = [sys.executable, "-m", "minimq"]

#: Commands that ask, answer and end: nothing about them depends on pipes, signals or the way they are started.
_ASKING = ("cluster", "delayed", "dlq", "group", "message", "route", "topic")
_OF_THIS_RUN = ("COLUMNS", "LINES")


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of a command: without what speaks of this test run, or of the terminal that it has."""
    kept = {name: value for name, value in os.environ.items() if not _is_of_this_run(name)}
    return {**kept, "PYTHONPATH": os.pathsep.join(sys.path), **variables}


def _is_of_this_run(name: str) -> bool:
    return name.startswith("MINIMQ_") or name in _OF_THIS_RUN


def all_commands(command: click.Command, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(command, click.Group):
        return [(path, command)]
    with click.Context(command) as context:
        children = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
    return [
        (path, command),
        *(leaf for name, child in children if child for leaf in all_commands(child, (*path, name))),
    ]


class Minimq:
    """Runs the command against one name server; `command` is what runs it."""

    def __init__(self, nameserver: str, *command: str) -> None:
        self.nameserver = nameserver
        self._command = command or COMMAND

    def __call__(self, *arguments: str, stdin: bytes = b"", status: int = 0) -> str:
        """Return what it wrote to stdout, or to stderr when another exit status is expected."""
        if self._command is COMMAND and arguments[0] in _ASKING and arguments[:2] != ("dlq", "describe"):
            return self._ask(arguments, stdin, status)
        done = self._run(arguments, stdin, status)
        return (done.stderr if status else done.stdout).decode()

    def with_stderr(self, *arguments: str, stdin: bytes = b"") -> str:
        """Return what it wrote to stderr though it did what it was told."""
        return self._run(arguments, stdin, 0).stderr.decode()

    def _ask(self, arguments: tuple[str, ...], stdin: bytes, status: int) -> str:
        others = {name: None for name in os.environ if _is_of_this_run(name)}
        runner = CliRunner(env={**others, "MINIMQ_NAMESERVER": self.nameserver})
        done = runner.invoke(main, arguments, input=stdin, prog_name="minimq")
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == status, (done.stdout[-2000:], done.stderr[-2000:])
        return done.stderr if status else done.stdout

    def _run(self, arguments: tuple[str, ...], stdin: bytes, status: int) -> subprocess.CompletedProcess[bytes]:
        with self.running(*arguments, stdin=subprocess.PIPE) as process:
            output, said = process.communicate(stdin, timeout=60)
        assert process.returncode == status, (output[-2000:], said[-2000:])
        return subprocess.CompletedProcess(arguments, status, output, said)

    def json(self, *arguments: str, status: int = 0) -> Any:
        arguments = (*arguments, "--output", "json")
        return json.loads(self._run(arguments, b"", status).stdout if status else self(*arguments))

    def on_terminal(self, *arguments: str, answer: bytes) -> tuple[int, str]:
        """Run it with a terminal as stdin, on which an answer is typed. Returns the exit status and all it wrote."""
        ours, theirs = pty.openpty()
        try:
            os.write(ours, answer)
            variables = environment(MINIMQ_NAMESERVER=self.nameserver)
            command = [*self._command, *arguments]
            pipe, same = subprocess.PIPE, subprocess.STDOUT
            with CommandCopy(command, env=variables, stdin=theirs, stdout=pipe, stderr=same) as process:
                output, _ = process.communicate(timeout=60)
        finally:
            os.close(ours)
            os.close(theirs)
        return process.returncode, output.decode()

    @contextmanager
    def running(self, *arguments: str, stdin: int | None = None, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run it beside the block, and end it with the block at the latest."""
        process = CommandCopy(
            [*self._command, *arguments],
            env=environment(MINIMQ_NAMESERVER=self.nameserver, **variables),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,  # else `communicate` would not return what a line that was read before has brought along
        )
        with process:
            try:
                yield process
            finally:
                process.kill()
