"""Copies of a data directory at all the moments at which a process could be killed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def photographed(path: Path, folder: Path, *steps: tuple[type, str]) -> Iterator[list[Path]]:
    """Copy a directory ahead of each of these steps, named by class and method, and once behind them all."""
    copies: list[Path] = []

    def photograph() -> None:
        copies.append(shutil.copytree(path, folder / f"copy-{len(copies)}"))

    def watched(step: Callable[..., Any]) -> Callable[..., Any]:
        def photograph_and_step(*arguments: Any, **named: Any) -> Any:
            photograph()
            return step(*arguments, **named)

        return photograph_and_step

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in steps:
            patch.setattr(owner, name, watched(getattr(owner, name)))
        yield copies
    photograph()
