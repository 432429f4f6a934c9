"""Count what may only fall, and compare it with the limits in scripts/ratchets.json.

The kernel's folders are listed below; a feature is a folder of `features/`. `--write` lowers the limits to the counts
and never raises one: do that by hand, with its reason in the commit. `--list NAME` prints what a figure counts, and
`bench/own_calls.py --by-name` the own calls.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: The rooms of the kernel, and what in them is not kernel.
KERNEL = (
    *(f"broker/minimq_broker/{room}/" for room in ("log", "state", "commit", "groups", "calls")),
    *(f"client/minimq/{room}/" for room in ("connection", "sending", "consuming", "rebalance")),
    "common/",
    "nameserver/",
)
NOT_KERNEL = re.compile(r"minimq_common/(security|serving|replicas|files)/|minimq_nameserver/controller/")
LIMITS = ROOT / "scripts/ratchets.json"
SOURCE_ROOTS = ("common", "nameserver", "broker", "client", "cli", "integrations", "console", "spark_connector")
DECISIONS = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.Try,
    ast.BoolOp,
    ast.match_case,
    ast.comprehension,
    ast.ExceptHandler,
)
MAX_DECISIONS = 12
#: Python versions count the same code differently: a comprehension is a call up to 3.11 only.
OWN_CALLS_PYTHON = (3, 11)
_COUNTS = 3
#: Identifiers and name prefixes of features.
FEATURE_NAMES = re.compile(
    r"%(DLQ|RETRY|REPLY)%|\b\w*(recall|delayed|half_message|staged|work_queue|dead_letter|compact(?!ion_settings)|popp?(?:er|ed|ing)\b)\w*",
    re.I,
)


@dataclass
class Source:
    """The source files of a checkout, with their rooms and imports."""

    root: Path
    names: list[str]

    @cached_property
    def texts(self) -> dict[str, str]:
        return {name: (self.root / name).read_text() for name in self.names}

    @cached_property
    def trees(self) -> dict[str, ast.Module]:
        return {name: ast.parse(text) for name, text in self.texts.items()}

    @cached_property
    def kernel(self) -> list[str]:
        return [name for name in self.names if name.startswith(KERNEL) and not NOT_KERNEL.search(name)]

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """The files that each file imports, also late and for types."""
        files = {_module(name): name for name in self.names}
        return {name: {*_imported(tree, files)} - {name} for name, tree in self.trees.items()}

    def ties(self) -> Iterator[tuple[str, str]]:
        """Yield each import of a feature by a file that is the kernel, or of another feature."""
        for name, imported in self.imports.items():
            own = feature(name)
            for each in sorted(imported):
                other = feature(each)
                if other and other != own and (own or name in self.kernel):
                    yield name, each


def feature(name: str) -> str | None:
    """Return the feature that a file belongs to, or None."""
    parts = name.split("/")
    return parts[3] if parts[2:3] == ["features"] and len(parts) > 4 else None


def source(root: Path) -> Source:
    """Return the source of a checkout; generated code is left out."""
    listed = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=root, capture_output=True, text=True, check=True
    ).stdout.split()
    names = [name for name in listed if name.split("/")[0] in SOURCE_ROOTS and (root / name).is_file()]
    return Source(root, names)


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of files that import each other, directly or not."""
    reached = {name: _reached(graph, name) for name in graph}
    groups = {
        frozenset(each for each in reached[name] if name in reached[each]) for name in graph if name in reached[name]
    }
    return sorted(sorted(group) for group in groups)


def decisions(tree: ast.AST) -> int:
    """Return the number of decision points of a piece of code."""
    return sum(isinstance(node, DECISIONS) for node in ast.walk(tree))


def figures(of: Source) -> dict[str, int | list[str]]:
    """Return the figures by name; a list counts by its length."""
    kernel = of.kernel
    ties = [*of.ties()]
    return {
        "lines": sum(text.count("\n") for text in of.texts.values()),
        "decision points": sum(map(decisions, of.trees.values())),
        "import circles": [" ".join(group) for group in circles(of.imports)],
        "files in import circles": sorted(name for group in circles(of.imports) for name in group),
        "kernel: lines": sum(of.texts[name].count("\n") for name in kernel),
        "kernel: decision points": sum(decisions(of.trees[name]) for name in kernel),
        "kernel: functions with more than 12 decision points": [
            *_long_functions({name: of.trees[name] for name in kernel})
        ],
        "kernel: imports of features": [f"{name} imports {each}" for name, each in ties if feature(name) is None],
        "kernel: lines that name a feature": [*_named({name: of.texts[name] for name in kernel})],
        "features: imports of other features": [f"{name} imports {each}" for name, each in ties if feature(name)],
    }


def _long_functions(trees: dict[str, ast.Module]) -> Iterator[str]:
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and decisions(node) > MAX_DECISIONS:
                yield f"{name}:{node.lineno} {node.name}"


def _named(texts: dict[str, str]) -> Iterator[str]:
    for name, text in texts.items():
        for number, line in enumerate(text.splitlines(), 1):
            if FEATURE_NAMES.search(line.split("#")[0]):
                yield f"{name}:{number}"


def _module(name: str) -> str:
    return ".".join(Path(name).with_suffix("").parts[1:]).removesuffix(".__init__")


def _imported(tree: ast.Module, files: dict[str, str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (files[each.name] for each in node.names if each.name in files)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found = (files.get(f"{node.module}.{each.name}") or files.get(node.module) for each in node.names)
            yield from filter(None, found)


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = [*graph[start]]
    while waiting:
        if (name := waiting.pop()) not in found:
            found.add(name)
            waiting += graph[name]
    return found


def own_calls(limits: dict[str, int]) -> dict[str, int]:
    """Return the calls of own functions per operation, if this is the Python of their limits.

    They are counted again if they exceed a limit: a slow disk or a busy machine adds some.
    """
    if sys.version_info[:2] != OWN_CALLS_PYTHON:
        print("own calls are not checked: their limits are those of Python {}.{}".format(*OWN_CALLS_PYTHON))
        return {}
    command = [sys.executable, str(ROOT / "bench/own_calls.py"), "--json"]
    counts: dict[str, int] = {}
    for _ in range(_COUNTS):
        counted = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
        named = {f"own calls of {name}": n for name, n in counted.items()}
        counts = {name: min(n, counts.get(name, n)) for name, n in named.items()}
        if all(n <= limits.get(name, n) for name, n in counts.items()):
            break
    return counts


def main() -> None:
    if sys.argv[1:2] == ["--list"]:
        listed = figures(source(ROOT))[sys.argv[2]]
        print(listed if isinstance(listed, int) else "\n".join(listed))
        return
    limits: dict[str, int] = json.loads(LIMITS.read_text())
    found = figures(source(ROOT)) | own_calls(limits)
    counts = {name: each if isinstance(each, int) else len(each) for name, each in found.items()}
    if sys.argv[1:] == ["--write"]:
        limits = limits | {name: min(count, limits.get(name, count)) for name, count in counts.items()}
        LIMITS.write_text(json.dumps(limits, indent=2) + "\n")
    grown = [f"{name}: {count:,}, was {limits[name]:,}" for name, count in counts.items() if count > limits[name]]
    if grown:
        sys.exit(
            "\n  ".join(
                [
                    "Figures that may only fall have risen; scripts/ratchets.py --list NAME shows what is counted,"
                    " bench/own_calls.py --by-name the own calls:",
                    *grown,
                ]
            )
        )


if __name__ == "__main__":
    main()
