"""Docstrings are statements, modules are short, and the glossary is complete."""

from __future__ import annotations

import ast
import re
from itertools import chain
from pathlib import Path

from support.cases import for_each

ROOT = Path(__file__).parents[2]
PACKAGES = [
    *("proto/minimq_proto", "common/minimq_common", "nameserver/minimq_nameserver", "broker/minimq_broker"),
    *("client/minimq", "cli/minimq_cli", "integrations/faststream_minimq"),
    *("console/minimq_console", "spark_connector/pyspark_minimq"),
]
#: Code that is not installed; its class names are those of one program or test each.
PROGRAMS = ["bench", "examples", "scripts", "tests"]
#: Phrases that follow another language's order, and plain ones that took their place.
BANNED = {
    **{"to be had": "available", "lets? go of": "drop", "comes? again": "is redelivered, returns"},
    **{"who comes back": "that returns", "(is|was) no matter": "does not matter", "for ever": "forever"},
}
#: Lines that a module of a package may have.
MAX_LINES = 500
#: Modules that are longer. Remove one once it is divided; never add one.
STILL_LONG: set[str] = set()
#: Words that open a question, or a phrase whose noun is missing.
OPENINGS = ("What", "Which", "Whether", "Who", "Whose", "Whom", "How", "Those")


@for_each("folder", [*PACKAGES, *PROGRAMS])
def test_a_docstring_states_and_does_not_ask(folder: str) -> None:
    asking = []
    question = rf"({'|'.join(OPENINGS)})\b"
    for path in sorted((ROOT / folder).rglob("*.py")):
        text = path.read_text()
        if "_pb2" in path.name or not re.search(rf'"""\\?\s*{question}', text):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = ast.get_docstring(node) or ""
                if re.match(question, docstring):
                    asking.append(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}: {docstring.splitlines()[0]}")
    assert not asking, "a class is a noun phrase, a function an imperative:\n" + "\n".join(asking)


@for_each("folder", [*PACKAGES, "docs"])
def test_phrases_of_another_language_are_gone(folder: str) -> None:
    banned = re.compile(rf"\b({'|'.join(BANNED)})\b")
    found = []
    for path in chain((ROOT / folder).rglob("*.py"), (ROOT / folder).rglob("*.md")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if hit := banned.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {hit[0]!r}")
    assert not found, f"write as {BANNED}:\n" + "\n".join(found)


def test_a_module_is_short_enough_to_read_at_once() -> None:
    long = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            lines = path.read_text().count("\n")
            if "_pb2" not in path.name and lines > MAX_LINES:
                long[str(path.relative_to(ROOT))] = lines
    assert long.keys() <= STILL_LONG, f"divide modules of more than {MAX_LINES} lines: {long}"


def test_the_glossary_has_each_term_once_and_is_linked() -> None:
    glossary = (ROOT / "docs/glossary.md").read_text()
    terms = re.findall(r"^\| \*\*([^*]+)\*\* \| (.+) \|$", glossary, re.MULTILINE)
    names = [term for term, _ in terms]
    assert len(names) > 60
    assert len(set(names)) == len(names)
    assert all(meaning.endswith(".") for _, meaning in terms)
    for document in ("README.md", "CONTRIBUTING.md"):
        assert "docs/glossary.md" in (ROOT / document).read_text()
