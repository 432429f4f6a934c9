"""The operation that CONTRIBUTING.md adds is a command, and a method of `Admin`, by what the page prints alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import minimq
from minimq import LocalCluster, PullConsumer
from support.pages import blocks_of
from support.waiting import wait_until

PATIENCE_S = 30.0
CLASS = "class GroupOperations(GroupChanges):\n"
PROGRAM = """
import sys
from minimq import Admin
with Admin(sys.argv[1]) as admin:
    print(*admin.members(sys.argv[2], prefix="web"))
"""


def with_the_operation(folder: Path) -> Path:
    """Return a folder with the client, to which the operation is added as the page says."""
    declaration, _ = blocks_of("CONTRIBUTING.md", "python")
    view, found, method = declaration.partition(CLASS)
    assert found, "CONTRIBUTING.md shows no method of GroupOperations"
    shutil.copytree(Path(minimq.__file__).parent, folder / "minimq", ignore=shutil.ignore_patterns("__pycache__"))
    module = folder / "minimq" / "operations" / "groups.py"
    text = module.read_text()
    table = '_MEMBERS = Table("no members", columns("group member"))\n'
    before, _, after = text.partition(CLASS)
    about, _, others = after.partition("\n\n")
    text = f"{before}{table}{view}{CLASS}{about}\n\n{method}\n{others}"
    module.write_text(text)
    return folder


def test_the_example_is_whole(cluster: LocalCluster, topic: str, group: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{with_the_operation(tmp_path)}:{os.pathsep.join(sys.path)}"}

    def said(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, check=False, env=environment, timeout=PATIENCE_S
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    names = ("web-1", "batch-1")
    consumers = [PullConsumer(cluster.nameserver, group=group, client_id=name) for name in names]
    try:
        for consumer in consumers:
            consumer.subscribe(topic)
        wait_until(
            lambda: all(consumer.poll(0.05) is not None and consumer.assignment for consumer in consumers), PATIENCE_S
        )
        command = ("-m", "minimq", "-n", cluster.nameserver, "group", "members", group)
        rows = json.loads(said(*command, "--output", "json"))
        assert {row["member"] for row in rows} == set(names)
        assert [row["member"] for row in json.loads(said(*command, "--prefix", "web", "--output", "json"))] == ["web-1"]
        assert said("-c", PROGRAM, cluster.nameserver, group).split() == ["web-1"]
    finally:
        for consumer in consumers:
            consumer.close()
