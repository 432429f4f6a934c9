"""Write docs/configuration.md from the options classes: `python scripts/document_options.py [--check]`."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from minimq import (
    ConsumerOptions,
    Producer,
    ProducerOptions,
    PullConsumer,
    PushConsumer,
    PushConsumerOptions,
    WorkQueueConsumer,
)
from minimq.consuming.consumer_options import SharedOptions
from minimq_broker.__main__ import main as broker
from minimq_nameserver.__main__ import main as nameserver

TARGET = Path(__file__).parent.parent / "docs" / "configuration.md"

INTRODUCTION = """# Every option

This page is written by `make docs` from the code.

In Python, durations are in seconds and sizes in bytes. Servers also take them with a unit, as a flag, as a variable
and in a file: `3d`, `1h30m`, `500ms`; `10GB` (powers of 1000), `64MiB` (of 1024).

An option of a command can be given as a flag, as an environment variable (`MINIMQ_BROKER_DATA_DIR` for `--data-dir`,
`MINIMQ_NAMESERVER_LISTEN` for `--listen`), or in a [file](#configuration-files); a flag wins over a variable, and that
over the file. Options of producers and consumers are given by name, `Producer(nameserver, send_timeout_s=5.0)`.
"""


FILES = """\
`--config FILE`, or the variable `MINIMQ_BROKER_CONFIG` or `MINIMQ_NAMESERVER_CONFIG`, names a file in TOML. Its
keys are the flags without the dashes in front, its values have the type of the option: durations and sizes may also be
text such as `"3d"` and `"10GB"`, and several values are a list. An unknown key is an error, which names the nearest
one, and the server does not start. This file, credentials and certificates may begin with a byte order mark of UTF-8; a
file in UTF-16 is an error. Paths must not contain control characters or quotes, and are relative to where the server is
started.

`minimq-broker --example-config` and `minimq-nameserver --example-config` print a file to begin with, which has every
option at its default.
"""


def command_table(command: click.Command) -> Iterator[str]:
    """Yield the lines of the table of a command's flags."""
    context = click.Context(command)
    yield "| flag | default | |"
    yield "|---|---|---|"
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.envvar:
            default = parameter.get_default(context)
            shown = "" if default in (None, "") else f"`{default}`"
            yield f"| `{parameter.opts[0]}` | {shown} | {parameter.help} |"


def class_table(options: Any) -> Iterator[str]:
    """Yield the lines of the table of an options class; the sentences come from its docstring."""
    text = inspect.getdoc(options) or ""
    described = dict(re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", text, re.MULTILINE))
    yield "| option | default | |"
    yield "|---|---|---|"
    for field in dataclasses.fields(options):
        if field.name not in described:
            continue  # in the table of its base class
        sentence = " ".join(described[field.name].split())
        yield f"| `{field.name}` | `{field.default}` | {sentence[0].upper()}{sentence[1:]} |"


def constructor_table(client: type[object]) -> Iterator[str]:
    """Yield the lines of the table of a class's arguments, without its options; the docstring has the sentences."""
    described = dict(re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", inspect.getdoc(client) or "", re.MULTILINE))
    yield "| argument | default | |"
    yield "|---|---|---|"
    for name, parameter in inspect.signature(client).parameters.items():
        if name in described and name != "options":
            default = "" if parameter.default in (None, parameter.empty) else f"`{parameter.default}`"
            sentence = " ".join(described[name].split())
            yield f"| `{name}` | {default} | {sentence[0].upper()}{sentence[1:]} |"


def page() -> str:
    sections = (
        ("minimq-nameserver", command_table(nameserver)),
        ("minimq-broker", command_table(broker)),
        ("Configuration files", [FILES]),
        ("Arguments of Producer", constructor_table(Producer)),
        ("Options of Producer", class_table(ProducerOptions)),
        ("Arguments of PullConsumer", constructor_table(PullConsumer)),
        ("Arguments of PushConsumer", constructor_table(PushConsumer)),
        ("Arguments of WorkQueueConsumer", constructor_table(WorkQueueConsumer)),
        ("Options of PullConsumer and PushConsumer", class_table(SharedOptions)),
        ("Further options of PullConsumer", class_table(ConsumerOptions)),
        ("Further options of PushConsumer", class_table(PushConsumerOptions)),
    )
    parts = [INTRODUCTION]
    for title, lines in sections:
        parts.append(f"## {title}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    if "--check" in sys.argv:
        if TARGET.read_text() != page():
            sys.exit(f"{TARGET.name} is out of date: make docs")
    else:
        TARGET.write_text(page())
