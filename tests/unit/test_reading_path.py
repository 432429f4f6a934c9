"""The documents for contributors name files that exist, and a reading path that fits into an hour."""

from __future__ import annotations

import re
from pathlib import Path

from support.cases import for_each

ROOT = Path(__file__).parents[2]
MAX_LINES = 2_600
FILES = [
    path
    for top in (
        "proto",
        "common",
        "nameserver",
        "broker",
        "client",
        "cli",
        "integrations",
        "console",
        "spark_connector",
        "tests",
        "bench",
        "scripts",
        "examples",
    )
    for path in (ROOT / top).rglob("*.*")
]


def section(document: str, title: str) -> str:
    _, found, rest = (ROOT / document).read_text().partition(f"\n## {title}\n")
    assert found, f"{document} has no section {title!r}"
    return rest.partition("\n## ")[0]


def test_the_ten_files_have_fewer_lines_than_the_text_says() -> None:
    text = section("ARCHITECTURE.md", "Ten files to read first")
    named = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
    assert len(named) == 10, "the text says ten files"
    missing = [path for path in named if not (ROOT / path).is_file()]
    assert not missing, f"ARCHITECTURE.md, 'Ten files to read first': {missing} are gone; name what took their place"
    lines = {path: len((ROOT / path).read_text().splitlines()) for path in named}
    assert sum(lines.values()) < MAX_LINES, f"the ten files have {sum(lines.values())} lines: {lines}"


@for_each("document", ["ARCHITECTURE.md", "CONTRIBUTING.md", "bench/README.md", "tests/README.md"])
def test_the_source_files_that_documents_name_exist(document: str) -> None:
    """A file may be named by the end of its path, as `state/state.py` is."""
    paths = [f"/{path.relative_to(ROOT)}" for path in FILES]
    named = re.findall(r"`([\w./-]+\.(?:py|proto|sh))`", (ROOT / document).read_text())
    gone = [name for name in named if not any(path.endswith(f"/{name}") for path in paths)]
    assert not gone, f"{document} names files that are gone: {gone}; name what took their place"


def test_every_benchmark_is_described() -> None:
    page = (ROOT / "bench/README.md").read_text()
    described = dict(re.findall(r"^\| `(\w+\.py)` \| `(make [a-z-]+)` \|", page, re.MULTILINE))
    makefile = (ROOT / "Makefile").read_text()
    measured = set(re.findall(r"python bench/(\w+\.py)", makefile))
    assert set(described) == measured
    for script, target in described.items():
        recipe = re.search(rf"^{target.removeprefix('make ')}:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
        assert recipe, target
        assert f"bench/{script}" in recipe[1], f"{target} does not run {script}"


def test_every_target_that_documents_name_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in (*ROOT.glob("*.md"), *ROOT.glob("*/*.md")):
        named = re.findall(r"(?:`|^)make ([a-z][a-z-]*)", document.read_text(), re.MULTILINE)
        assert set(named) <= targets, f"{document}: {set(named) - targets}"
