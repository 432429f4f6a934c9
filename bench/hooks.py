"""Starts processes with a hook: a folder with a `sitecustomize.py` on their path."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HERE = Path(__file__).parent


@contextmanager
def hook_for_children(folder: str, **variables: str) -> Iterator[None]:
    """Let processes that start in the block load the hook in `folder`, with these environment variables."""
    path = os.pathsep.join([str(_HERE / folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables |= {"PYTHONPATH": path}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
