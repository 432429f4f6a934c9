"""The commands in the documents run as printed, and the lists in them agree with the code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import click
import pytest

import minimq
from minimq import Admin, LocalCluster
from minimq.local.server_process import BrokerProcess
from minimq_broker import __main__ as broker
from minimq_cli import main as client
from minimq_nameserver import __main__ as nameserver
from support.pages import ROOT, blocks_of, text_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_commands_of_the_readme_run_as_printed(tmp_path: Path) -> None:
    with LocalCluster(brokers=2) as cluster:
        printed = run_commands(blocks_of("README.md", "sh")[1], cluster, tmp_path)
    consumed = next(text for command, text in printed.items() if command.startswith("minimq consume"))
    assert sorted(consumed.splitlines()) == ["one", "three", "two"]


def test_the_commands_about_topics_run_as_printed(tmp_path: Path) -> None:
    with LocalCluster(brokers=2) as cluster:
        run_commands(blocks_of("docs/sending.md", "sh")[0], cluster, tmp_path)


def test_the_commands_about_the_command_run_as_printed(tmp_path: Path) -> None:
    with LocalCluster(brokers=1) as cluster:
        printed = run_commands(blocks_of("docs/command.md", "sh")[0], cluster, tmp_path)
    assert "messages of copied on broker-a" in printed["minimq topic delete copied --yes"]


def run_commands(text: str, cluster: LocalCluster, directory: Path) -> dict[str, str]:
    """Run the lines of a block one after the other against a cluster; return what each wrote."""
    printed = {}
    for line in text.splitlines():
        shown = line.partition("#")[0].strip()
        if shown.startswith(("source ", "minimq local")):
            continue  # the cluster runs already, at another port
        command = shown.replace("minimq ", f"{sys.executable} -m minimq -s {cluster.nameserver} ")
        done = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False, cwd=directory
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        printed[shown] = done.stdout
    return printed


def test_the_list_of_options_is_current() -> None:
    script = ROOT / "scripts" / "document_options.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_there_are_few_public_names() -> None:
    assert len(minimq.__all__) <= 40


COMMANDS = {"minimq": client.main, "minimq-broker": broker.main, "minimq-nameserver": nameserver.main}


def test_the_commands_that_documents_name_are_there() -> None:
    named = 0
    for document in ("README.md", "ARCHITECTURE.md", *(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))):
        text = (ROOT / document).read_text()
        lines = [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in whole_lines(block)]
        prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        for line in (*lines, *(code.replace("\n", " ") for code in re.findall(r"`([^`]+)`", prose))):
            for found in re.finditer(r"(?:^|\| )(minimq(?:-broker|-nameserver)?) ([a-z-][^#|>]*)", line):
                check_command(COMMANDS[found[1]], found[2].split(), f"{document}: {found[0]}")
                named += 1
    assert named > 50


def whole_lines(block: str) -> list[str]:
    """Return the lines of a block of the shell; one that goes on in the next is one."""
    return block.replace("\\\n", " ").splitlines()


def check_command(command: click.Command, words: list[str], where: str) -> None:
    context = click.Context(command)
    options, used = set[str](), set[str]()
    while True:
        options.update(name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts))
        while isinstance(command, click.Group) and words and words[0].startswith("-"):  # its own, ahead of a command
            name, equals, _ = words.pop(0).partition("=")
            used.add(name)
            is_flag = any(getattr(each, "is_flag", False) for each in command.params if name in each.opts)
            if words and not equals and not is_flag and name not in {"--help", "--version"}:
                words.pop(0)
        if not isinstance(command, click.Group) or not words or not re.fullmatch("[a-z][a-z-]*", words[0]):
            break
        named = command.get_command(context, words.pop(0))
        assert named is not None, where
        command = named
    used |= {word.partition("=")[0] for word in words if word.startswith("--")}
    assert used - {"--help", "--version"} <= options, where


def names_in_tables(document: str) -> set[str]:
    """Return the names in the first column of the tables of a page."""
    columns = re.findall(r"^\| ([^|]*`[^|]*) \|", text_of(document), re.MULTILINE)
    return {name for column in columns for name in re.findall(r"`(\w+)", column)}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_the_methods_of_admin_that_its_page_shows_are_there() -> None:
    """The list of all of them is made when the site is built."""
    assert len(shown := names_in_tables("docs/administration.md")) > 30
    assert shown <= public(Admin)


def test_every_control_of_a_local_cluster_is_there() -> None:
    known = public(BrokerProcess) | {"name", "address", "data_dir", "log_path", "broker_name", "broker_id"}
    arguments = LocalCluster.__init__.__annotations__.keys() - {"return", "unknown"}
    controls = names_in_tables("docs/local-cluster.md")
    assert controls <= known | arguments
    assert controls >= {"start", "stop", "kill", "pause", "resume", "restart", "running", "paused", "pid"}
    assert controls >= arguments - {"cluster"}


# ---- installing, and what runs then ---------------------------------------------------------------


def test_the_extras_that_documents_name_exist() -> None:
    named = 0
    for document in ("README.md", *(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))):
        for extras in re.findall(r"(?:minimq|'\.|\whl)\[([a-z,]+)\]", text_of(document)):
            assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys(), document
            named += 1
    assert named >= 2


@pytest.mark.slow
def test_each_example_says_what_it_needs() -> None:
    """A script needs what its modules import; it names the packages or extras that bring more than minimq does."""
    modules = {path.stem: path for path in (ROOT / "examples").glob("*.py")}
    homes = packages_distributions()
    said = 0
    for script in modules.values():
        if "__main__" not in script.read_text():
            continue
        install = " ".join(
            re.findall(r"pip install ([^#&\n]*)", ast.get_docstring(ast.parse(script.read_text())) or "")
        )
        extras = re.findall(r"\[([a-z,]+)\]", install)
        known = brought_by(*",".join(extras).split(",")) if extras else brought_by()
        known |= {"minimq", "faststream_minimq", *re.findall(r"(?<![\w\[,])[a-z][a-z-]*(?![\w\]])", install)}
        for module in needed(script.stem, modules) - sys.stdlib_module_names:
            assert known & {name.lower() for name in homes.get(module, [module])}, f"{script.name} imports {module}"
        said += 1
    assert said >= 7


def brought_by(*extras: str) -> set[str]:
    """Return the names of what is installed with some extras."""
    requirements = [*PROJECT["dependencies"]]
    for extra in extras:
        requirements += PROJECT["optional-dependencies"][extra]
    return {re.split(r"[^A-Za-z0-9_.-]", requirement)[0].lower() for requirement in requirements}


def needed(module: str, modules: dict[str, Path]) -> set[str]:
    """Return what a module and those beside it that it imports need from elsewhere."""
    names, waiting = set[str](), {module}
    done = set[str]()
    while waiting:
        done.add(here := waiting.pop())
        found = imported(modules[here])
        names |= found - modules.keys()
        waiting |= found & modules.keys() - done
    return names


def imported(script: Path) -> set[str]:
    tree = ast.parse(script.read_text())
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    return {name.partition(".")[0] for name in names}
