"""Copies of the broker's source that lack a feature."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import minimq_broker

#: Features that can be deleted, each with those that need it.
DELETABLE: dict[str, tuple[str, ...]] = {
    "compaction": (),
    "delayed": (),
    "retention": (),
    "search": (),
    "staged": (),
    "work_queues": ("search",),
}


def copy_without(folder: Path, *names: str) -> None:
    """Copy the broker into a folder, without features and those that need them, and their lines of the assembly."""
    broker = folder / "minimq_broker"
    shutil.copytree(Path(minimq_broker.__file__).parent, broker, ignore=shutil.ignore_patterns("__pycache__"))
    for each in {*names, *(other for name in names for other in DELETABLE[name])}:
        shutil.rmtree(broker / "features" / each)
        path = broker / "assembly.py"
        text = path.read_text()
        for line, made in re.findall(rf"(from minimq_broker\.features\.{each}\.\w+ import (\w+)\n)", text):
            text = re.sub(rf"\b{made}(\(\))?,? ?", "", text.replace(line, ""))
        path.write_text(text)
