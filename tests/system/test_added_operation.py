"""The operation that CONTRIBUTING.md adds is a command, and a method of `Admin`, by what the page prints alone."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import minimq
from minimq import LocalCluster, PullConsumer
from support.pages import ROOT, blocks_of
from support.waiting import wait_until

TIMEOUT_S = 30.0
CLASS = "class GroupReads(Operations):\n"
PROGRAM = """
import sys
from minimq import Admin
with Admin(sys.argv[1]) as admin:
    print(*admin.members(sys.argv[2], prefix="web"))
"""
#: Prints the lists of the site.
LISTS = """
import sys
sys.path.insert(0, "scripts")
from site_hooks import with_parts
print(with_parts("<!-- commands -->\\n<!-- methods -->"))
"""
#: Those that look at all operations.
OF_ALL = (
    "tests/unit/client/admin/test_operations.py",
    "tests/system/test_guides.py::test_pages_name_each_option_of_commands_that_are_no_operations",
    "tests/system/test_documents.py::test_the_methods_of_admin_that_its_page_shows_are_there",
)


def with_the_operation(folder: Path) -> Path:
    """Return a folder with the client, to which the operation is added as the page says."""
    _, declaration, _ = blocks_of("CONTRIBUTING.md", "python")
    view, found, method = declaration.partition(CLASS)
    assert found, "CONTRIBUTING.md shows no method of GroupReads"
    shutil.copytree(Path(minimq.__file__).parent, folder / "minimq", ignore=shutil.ignore_patterns("__pycache__"))
    module = folder / "minimq" / "admin" / "groups.py"
    before, _, after = module.read_text().partition(CLASS)
    about, _, others = after.partition("\n\n")
    text = f"{before}{view}{CLASS}{about}\n\n{method}\n{others}"
    names = [name for node in ast.walk(ast.parse(text)) for name in defined(node)]
    assert sorted(set(names)) == sorted(names), "the example overwrites a name of the module"
    module.write_text(text)
    return folder


def defined(node: ast.AST) -> list[str]:
    """Return the names that a module or a class gives to what it has."""
    if not isinstance(node, ast.Module | ast.ClassDef):
        return []
    owner = getattr(node, "name", "")
    targets = [
        each.id
        for part in node.body
        if isinstance(part, ast.Assign)
        for each in part.targets
        if isinstance(each, ast.Name)
    ]
    made = [part.name for part in node.body if isinstance(part, ast.FunctionDef | ast.ClassDef)]
    return [f"{owner}.{name}" for name in (*targets, *made)]


def test_no_other_file_is_touched(tmp_path: Path) -> None:
    copy = with_the_operation(tmp_path)
    path = f"proto common nameserver broker {copy} console spark_connector tests"
    environment = {**os.environ, "PYTHONPATH": f"{copy}:{os.pathsep.join(sys.path)}"}

    def said(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            timeout=100,
            cwd=ROOT,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    said("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-o", f"pythonpath={path}", *OF_ALL)
    lists = said("-c", LISTS)
    assert "| `group members` | List the members of a consumer group. |" in lists
    assert "| `members` | `group members` | List the members of a consumer group. |" in lists


def test_the_example_is_whole(cluster: LocalCluster, topic: str, group: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{with_the_operation(tmp_path)}:{os.pathsep.join(sys.path)}"}

    def said(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, check=False, env=environment, timeout=TIMEOUT_S
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    names = ("web-1", "batch-1")
    consumers = [PullConsumer(cluster.nameserver, group=group, client_id=name) for name in names]
    try:
        for consumer in consumers:
            consumer.subscribe(topic)
        wait_until(
            lambda: all(consumer.poll(0.05) is not None and consumer.assignment for consumer in consumers), TIMEOUT_S
        )
        command = ("-m", "minimq", "-s", cluster.nameserver, "group", "members", group)
        rows = json.loads(said(*command, "--output", "json"))
        assert {row["member"] for row in rows} == set(names)
        assert [row["member"] for row in json.loads(said(*command, "--prefix", "web", "--output", "json"))] == ["web-1"]
        assert said("-c", PROGRAM, cluster.nameserver, group).split() == ["web-1"]
        described = said("-m", "minimq", "-s", cluster.nameserver, "group", "describe", group)
        assert all(name in described for name in names)
    finally:
        for consumer in consumers:
            consumer.close()


def test_the_scenario_of_the_page_is_one_of_the_contract() -> None:
    scenario, *_ = blocks_of("CONTRIBUTING.md", "python")
    assert textwrap.dedent(scenario).strip() in (ROOT / "tests" / "contract" / "test_delivery.py").read_text()
