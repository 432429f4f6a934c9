"""Names and docstrings follow the glossary: one noun for one thing, and statements instead of questions."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = [
    *("proto/minimq_proto", "common/minimq_common", "nameserver/minimq_nameserver", "broker/minimq_broker"),
    *("client/minimq", "client/faststream_minimq", "console/minimq_console", "spark_connector/pyspark_minimq"),
]
#: Code that is not installed; its class names are those of one program or test each.
PROGRAMS = [
    "bench",
    "examples",
    "scripts",
    "tests",
]
#: Rooms whose words are still to be changed. Strike a room off once it passes; never add one.
EXEMPT = [
    *(f"client/minimq/{room}" for room in ("connection", "routes")),
]
#: Rooms in which words of the past are still to be replaced.
OUTDATED = [
    *EXEMPT,
    *(f"client/minimq/{room}" for room in ("administration", "aio", "transport")),
]
#: The asyncio classes have the names of the plain ones.
SAME_NAMES = ["client/minimq/aio"]
#: Words of the past, and the field's words that took their place.
REPLACED = {
    **{"Sealer": "BatchEncoder", "Flights": "InFlight", "WaitingLines": "RecordAccumulator", "Lane": "PendingBatch"},
    **{"Departure": "ReadyBatch", "Placement": "QueueSelector", "Wish": "ReadLimits", "StoreSlot": "StoreHandle"},
    **{"Extent": "LogStatus", "Standing": "ReplicaSetStatus", "RollCall": "ReplicaLiveness", "Founding": "Bootstrap"},
    **{"KeptOffsets": "StandbyOffsets", "mended": "repaired", "Whom": "MasterRef"},
    **{"what_was_mended": "what_was_repaired", "Introduced": "FollowerHello"},
    **{"OwnReplica": "ReplicaIdentity", "Complaint": "LogOnce", "member_words": "session requests"},
    **{"BegunTopics": "initial offsets", "GroupStarts": "initial offsets", "StartOffsets": "initial offsets"},
    **{"InHand": "in-flight deliveries", "AskedListener": "ListenerAdapter", "Returns": "retry worker"},
    **{"Portion": "poll batch", "Agreement": "GroupConfig", "Distribution": "Histogram", "Told": "RouteFact"},
    **{"News": "QueueEvent", "tell_news": "notify", "to_the_end": "uncancellable", "Sight": "LookupResult"},
}
#: Phrases that follow another language's order, and plain ones that took their place.
BANNED = {
    **{"to be had": "available", "lets? go of": "drop", "comes? again": "is redelivered, returns"},
    **{"who comes back": "that returns", "(is|was) no matter": "does not matter", "for ever": "forever"},
}
#: Lines that a file of a package may have.
MOST_LINES = 420
#: Files that are longer. Strike one off once it is divided; never add one.
STILL_LONG = {
    "common/minimq_common/errors.py",  # one tree, read as a whole
}
#: Words that open a question, or a phrase whose noun is missing.
OPENINGS = ("What", "Which", "Whether", "Who", "Whose", "Whom", "How", "Those")


def sources(folders: list[str], *without: str) -> Iterator[tuple[str, ast.Module]]:
    """Yield the path and the syntax tree of each module in folders, but for those in the folders to leave out."""
    for path in chain.from_iterable(sorted((ROOT / folder).rglob("*.py")) for folder in folders):
        name = str(path.relative_to(ROOT))
        if "_pb2" not in name and not any(f"{name}/".startswith(f"{room}/") for room in without):
            yield name, ast.parse(path.read_text())


@pytest.mark.parametrize("folder", [*PACKAGES, *PROGRAMS])
def test_a_docstring_states_and_does_not_ask(folder: str) -> None:
    asking = []
    for path, module in sources([folder]):
        for node in ast.walk(module):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = ast.get_docstring(node) or ""
                if re.match(rf"({'|'.join(OPENINGS)})\b", docstring):
                    asking.append(f"{path}:{getattr(node, 'lineno', 1)}: {docstring.splitlines()[0]}")
    assert not asking, "a class is a noun phrase, a function an imperative:\n" + "\n".join(asking)


@pytest.mark.parametrize("folder", [*PACKAGES, "docs"])
def test_phrases_of_another_language_are_gone(folder: str) -> None:
    banned = re.compile(rf"\b({'|'.join(BANNED)})\b")
    found = []
    for path in chain((ROOT / folder).rglob("*.py"), (ROOT / folder).rglob("*.md")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if hit := banned.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {hit[0]!r}")
    assert not found, f"write as {BANNED}:\n" + "\n".join(found)


def test_a_class_name_is_used_once_in_all_packages_together() -> None:
    places = defaultdict(list)
    for path, module in sources(PACKAGES, *SAME_NAMES):
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path)
    assert not {name: paths for name, paths in places.items() if len(paths) > 1}


@pytest.mark.parametrize("package", PACKAGES)
def test_replaced_words_are_gone(package: str) -> None:
    found = []
    for path, module in sources([package], *OUTDATED):
        for node in ast.walk(module):
            for attribute in ("id", "attr", "name", "arg"):
                name = getattr(node, attribute, None)
                if isinstance(name, str) and name.strip("_") in REPLACED:
                    found.append(f"{path}:{getattr(node, 'lineno', 1)}: {name}, say {REPLACED[name.strip('_')]!r}")
    assert not found, "\n".join(found)


def test_a_file_has_one_noun_and_so_few_lines() -> None:
    long = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            lines = path.read_text().count("\n")
            if "_pb2" not in path.name and lines > MOST_LINES:
                long[str(path.relative_to(ROOT))] = lines
    assert long.keys() <= STILL_LONG, f"divide by nouns what has more than {MOST_LINES} lines: {long}"


def test_the_glossary_has_each_term_once_and_is_linked() -> None:
    glossary = (ROOT / "docs/glossary.md").read_text()
    terms = re.findall(r"^\| \*\*([^*]+)\*\* \| (.+) \|$", glossary, re.MULTILINE)
    names = [term for term, _ in terms]
    assert len(names) > 60
    assert len(set(names)) == len(names)
    assert all(meaning.endswith(".") for _, meaning in terms)
    for document in ("README.md", "CONTRIBUTING.md"):
        assert "docs/glossary.md" in (ROOT / document).read_text()
