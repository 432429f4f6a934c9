"""The pages that guide operators: their programs run, and their numbers, codes and versions are those of the code."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import click

import minimq
import minimq.aio
import minimq.schemas
from minimq import MinimqError, errors
from minimq.admin.operation import operations_of
from minimq_cli import main as client
from support.cases import for_each
from support.pages import ROOT, run_page, text_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_worked_example_of_sizing_computes_what_its_text_says(tmp_path: Path) -> None:
    size, disk, network = run_page("docs/sizing.md", tmp_path)
    said = text_of("docs/sizing.md")
    bytes_each, terabytes = size.split()[0], disk.split()[1]
    incoming, outgoing = re.findall(r"(\d+) Mbit/s", network)
    assert (
        f"prints {bytes_each} bytes a message, {terabytes} TB, and {incoming} Mbit/s in and {outgoing} Mbit/s out"
        in said
    )


def test_the_versions_are_those_that_packages_ask_for() -> None:
    said = text_of("docs/compatibility.md")
    asked = "\n".join(chain(PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()))
    lowest = dict(re.findall(r"^([\w-]+)(?:\[[\w,]+\])?>=([\w.]+)", asked, re.MULTILINE))
    assert f"| Spark | {lowest['pyspark']} or newer" in said
    assert f"| pyarrow | {lowest['pyarrow']} or newer" in said
    assert f"| grpcio, protobuf | {lowest['grpcio']}, {lowest['protobuf']} or newer" in said
    assert f"| FastStream | {lowest['faststream']} or newer" in said
    assert f"API {lowest['opentelemetry-api']} or newer" in said
    pythons = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert f"| Python | {pythons[0]} to {pythons[-1]} |" in said


#: Base classes, and errors that only servers see.
UNTOLD = {
    *("MinimqError", "UsageError", "ServerError", "TransportError", "StoreError", "DamagedMessages"),
    *("StaleTerm", "TermEnding", "ReplicaSetChanged", "CopyNeeded", "CopyInterrupted"),
}


def test_troubleshooting_tells_what_each_error_means() -> None:
    rows = re.findall(r"^\| (`[A-Z]\w+`[^|]*) \|", text_of("docs/troubleshooting.md"), re.MULTILINE)
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    classes = {name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, MinimqError)}
    assert told == classes - UNTOLD


def test_the_index_names_each_page() -> None:
    index = text_of("docs/index.md")
    for page in (ROOT / "docs").glob("*.md"):
        assert f"]({page.name})" in index or page.name == "index.md", page.name


def test_the_readme_is_short_and_its_figures_were_measured() -> None:
    readme, measured = text_of("README.md"), text_of("docs/benchmarks.md")
    assert readme.count("\n") <= 150
    rates = re.findall(r"([\d,]{5,})/s", readme.partition("## Comparison")[2])
    assert len(rates) == 3
    assert all(rate in measured for rate in rates)
    ours, theirs = re.findall(r"([\d.]+) s \|", readme.partition("| read 2 million messages")[2].partition("\n")[0])
    assert f"offset and body | {ours} and {theirs} |" in measured


def leaves(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield the commands that do something, with their names."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from leaves(child, (*path, name))
    else:
        yield path, command


def test_pages_name_each_option_of_commands_that_are_no_operations() -> None:
    """The list of all commands, and the help of each, are made when the site is built."""
    pages = " ".join(page.read_text() for page in (ROOT / "docs").glob("*.md") if page.name != "configuration.md")
    operations = {each.name for each in operations_of(minimq.Admin)}
    seen = 0
    for path, command in leaves(client.main, ()):
        if (name := " ".join(path)) in operations:
            continue
        seen += 1
        for option in (option for parameter in command.params for option in parameter.opts):
            if option.startswith("--"):
                assert re.search(rf"{re.escape(option)}\b(?!-)", pages), f"no page names {option} of {name}"
    assert seen > 10


@for_each(
    "kind",
    [minimq.Producer, minimq.PullConsumer, minimq.PushConsumer, minimq.WorkQueueConsumer, minimq.WorkQueueMessage],
)
def test_pages_name_what_a_class_has(kind: type) -> None:
    pages = " ".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    inner = {"transaction_input"}  # between a consumer and the transaction that it is in
    names = [name for name in dir(kind) if not name.startswith("_") and name not in inner]
    assert not [name for name in names if not re.search(rf"\b{name}\b", pages)]


def test_the_program_of_the_page_about_replication_runs_as_printed(tmp_path: Path) -> None:
    status, *roles = run_page("docs/replication.md", tmp_path)
    assert status == "SendStatus.SEND_OK"
    assert "master" in {line.split()[1] for line in roles}
