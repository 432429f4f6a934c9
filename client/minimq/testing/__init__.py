"""Fixtures for tests of programs that use minimq: a real cluster, and for each test topics and groups of its own.

pytest finds them by itself once minimq is installed; `minimq.testing.plugin` has them.

`MinimqContainer` is a cluster in a container: `pip install 'minimq[testcontainers]'`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from minimq.testing.names import NewGroup, NewTopic

__all__ = ["MinimqContainer", "NewGroup", "NewTopic"]

if TYPE_CHECKING:
    from minimq.testing.minimq_container import MinimqContainer
else:

    def __getattr__(name: str) -> object:
        """Load the one name that needs more than minimq does."""
        if name != "MinimqContainer":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            module = import_module("minimq.testing.minimq_container")
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("minimq"):
                raise
            raise ModuleNotFoundError(
                f"MinimqContainer needs {error.name}: pip install 'minimq[testcontainers]'", name=error.name
            ) from None
        return module.MinimqContainer
