"""Connections are opened in one place, so that none is without TLS where others have it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = [
    "common/minimq_common",
    "nameserver",
    "broker",
    "client",
    "cli",
    "integrations",
    "console",
    "spark_connector",
]
OPENS = re.compile(
    r"^(insecure_channel|secure_channel|add_(in)?secure_port|intercept_channel|socket|create_connection)$"
)
#: The one place, and a look whether a port is free; a worker of Spark sets an option of the connection that it has.
ALLOWED = {
    "common/minimq_common/wire/rpc.py": {
        "insecure_channel",
        "secure_channel",
        "add_insecure_port",
        "add_secure_port",
        "socket",
    },
    "client/minimq/local/server_process.py": {"socket"},
    "spark_connector/pyspark_minimq/worker_process.py": {"socket"},
}


def called(path: Path) -> list[tuple[str, ast.Call]]:
    """Return the calls in a file, by the last part of what is called."""
    tree = ast.parse(path.read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [
        (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""), node)
        for node in calls
    ]


def test_channels_and_ports_are_opened_in_one_place_and_always_told_of_their_security() -> None:
    opened: dict[str, set[str]] = {}
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        name = str(path.relative_to(ROOT))
        for function, call in called(path):
            if OPENS.match(function):
                opened.setdefault(name, set()).add(function)
            if function in {"open_channel", "open_aio_channel"}:
                assert len(call.args) >= 2, f"{name}:{call.lineno} says nothing of TLS"
            if function == "bind" and ast.unparse(call.func) == "rpc.bind":
                assert len(call.args) == 3, f"{name}:{call.lineno} says nothing of TLS"
    assert opened == ALLOWED
