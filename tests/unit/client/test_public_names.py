"""The public names of the client: all there, loaded when they are first used."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import minimq
from support.command import environment

#: What costs time, or is no use to who needs a name of another room.
HEAVY = ("grpc", "google.protobuf", "lmdb", "msgspec", "asyncio", "click", "minimq_common")


def imports_for_type_checkers() -> dict[str, str]:
    """Return where type checkers are told that each name comes from."""
    tree = ast.parse(Path(minimq.__file__).read_text())
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    return {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def python(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, check=True, timeout=60, text=True
    ).stdout


def test_every_public_name_is_what_type_checkers_see() -> None:
    seen = imports_for_type_checkers()
    assert sorted(seen) == sorted(minimq.__all__)
    for name, module in seen.items():
        home = import_module(module)
        assert getattr(minimq, name) is getattr(home, name), name


def test_the_import_alone_loads_nothing_that_is_heavy() -> None:
    loaded = set(python("import sys, minimq; print(*sys.modules)").split())
    assert "minimq" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_a_name_loads_what_it_needs_and_no_more() -> None:
    loaded = set(python("import sys; from minimq import Message; print(*sys.modules)").split())
    assert "minimq_common.model" in loaded
    assert "grpc" not in loaded


def test_names_are_listed_before_they_are_loaded() -> None:
    assert set(minimq.__all__) <= set(python("import minimq; print(*dir(minimq))").split())
    assert set(python("from minimq import *; print(*dir())").split()) >= set(minimq.__all__)


def test_a_name_that_is_not_there_is_missed_as_in_any_module() -> None:
    with pytest.raises(AttributeError, match="module 'minimq' has no attribute 'Prodcuer'"):
        _ = minimq.Prodcuer  # type: ignore[attr-defined]
    assert not hasattr(minimq, "__path_hooks__")
