"""Copies of packages to which a test adds something, or from which it takes something away."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType


def copy_package(package: ModuleType, folder: Path) -> Path:
    """Copy a package into a folder; return the path of the copy."""
    assert package.__file__ is not None
    origin = Path(package.__file__).parent
    return Path(shutil.copytree(origin, folder / origin.name, ignore=shutil.ignore_patterns("__pycache__")))
