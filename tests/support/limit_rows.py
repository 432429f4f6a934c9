"""The rows of docs/limits.md."""

from __future__ import annotations

from pathlib import Path

_PAGE = (Path(__file__).parents[2] / "docs" / "limits.md").read_text()


def limit_rows(section: str) -> list[str]:
    """Return the lines of the table of a section, with its head."""
    _, _, rest = _PAGE.partition(f"\n## {section}\n")
    assert rest, section
    return [line for line in rest.partition("\n## ")[0].splitlines() if line.startswith("| ")]
