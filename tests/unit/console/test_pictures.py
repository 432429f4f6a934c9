"""Pictures of the console in its document: all are there, described, and small."""

from __future__ import annotations

import re
import struct
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"


def test_each_picture_is_shown_with_a_description_and_is_small() -> None:
    shown = re.findall(r"!\[(.+?)\]\(images/(console-.+?\.png)\)", (DOCS / "console.md").read_text())
    assert {name for _, name in shown} == {each.name for each in (DOCS / "images").glob("console-*.png")}
    for description, name in shown:
        assert len(description.split()) > 5
        data = (DOCS / "images" / name).read_bytes()
        assert struct.unpack_from(">8x4x4sI", data) == (b"IHDR", 1280)
        assert len(data) < 120_000
