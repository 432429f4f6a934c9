"""Paths as users write them."""

from __future__ import annotations

import os
from pathlib import Path

from minimq_common.errors import InvalidArgument


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return a path with "~" replaced by the user's home. Raises `InvalidArgument` if the user has none."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InvalidArgument(
            f"{os.fspath(path)}: '~' is the home directory, which this user does not have: set HOME, or give an "
            "absolute path"
        ) from None
