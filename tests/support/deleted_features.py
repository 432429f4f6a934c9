"""Copies of the broker's and of the client's source that lack features."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

import minimq
import minimq_broker
from support.copied_packages import copy_package

#: Features of the broker that can be deleted, each with those that need it.
DELETABLE: dict[str, tuple[str, ...]] = {
    "compaction": (),
    "delayed": (),
    "retention": (),
    "search": (),
    "staged": (),
    "work_queues": ("search",),
}
#: The same of the client. Search follows a message into all other features.
CLIENT_FEATURES: dict[str, tuple[str, ...]] = {
    "broadcasting": (),
    "dead_letters": ("search",),
    "delayed": ("search",),
    "half_messages": (),
    "listeners": (),
    "requests": ("listeners",),
    "search": (),
    "sql_filters": (),
    "tables": (),
    "transactions": (),
    "work_queues": ("dead_letters", "listeners", "search"),
}
#: The files of the client that name features.
CLIENT_ASSEMBLY = ("producer.py", "consumer.py", "filters.py", "aio/*.py", "admin/admin.py")


def copy_without(folder: Path, *names: str) -> None:
    """Copy the broker into a folder, without features and those that need them, and their lines of the assembly."""
    broker = copy_package(minimq_broker, folder)
    for each in {*names, *(other for name in names for other in DELETABLE[name])}:
        shutil.rmtree(broker / "features" / each)
        path = broker / "assembly.py"
        text = path.read_text()
        for line, made in re.findall(rf"(from minimq_broker\.features\.{each}\.\w+ import (\w+)\n)", text):
            text = re.sub(rf"\b{made}(\(\))?,? ?", "", text.replace(line, ""))
        path.write_text(text)


def copy_client_without(folder: Path, *names: str) -> None:
    """Copy the client into a folder, without features and those that need them, and their lines of the assembly."""
    client = copy_package(minimq, folder)
    gone = {*names, *(other for name in names for other in CLIENT_FEATURES[name])}
    for each in gone:
        shutil.rmtree(client / "features" / each)
    for pattern in CLIENT_ASSEMBLY:
        for path in client.glob(pattern):
            path.write_text(without_features(path.read_text(), gone))


def without_features(text: str, features: Iterable[str]) -> str:
    """Return the source of an assembly file without features: imports, base classes, and statements that use them."""
    module = ast.parse(text)
    prefixes = tuple(f"minimq.features.{name}." for name in features)
    imports = [each for each in ast.walk(module) if isinstance(each, ast.ImportFrom)]
    gone = {alias.name for each in imports if f"{each.module}.".startswith(prefixes) for alias in each.names}
    return ast.unparse(_Without(prefixes, gone).visit(module))


class _Without(ast.NodeTransformer):
    def __init__(self, prefixes: tuple[str, ...], gone: set[str]) -> None:
        self._prefixes, self._gone = prefixes, gone

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.bases = [base for base in node.bases if not self._uses(base)]
        node.body = [each for each in node.body if not self._uses(each)] or [ast.Pass()]
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.stmt) and not hasattr(node, "body") and self._uses(node):
            return ast.Pass()
        return super().generic_visit(node)

    def _uses(self, node: ast.AST) -> bool:
        for each in ast.walk(node):
            if isinstance(each, ast.ImportFrom) and f"{each.module}.".startswith(self._prefixes):
                return True
            if isinstance(each, ast.Name) and each.id in self._gone:
                return True
        return False
