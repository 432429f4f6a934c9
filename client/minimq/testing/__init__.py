"""Fixtures for tests of programs that use minimq: a real cluster, and for each test topics and groups of its own.

pytest finds them by itself once minimq is installed; `minimq.testing.plugin` has them.

`MinimqContainer` is a cluster in a container: `pip install 'minimq[testcontainers]'`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from minimq.testing.names import NewGroup, NewTopic
from minimq.transport import client_log

__all__ = ["MinimqContainer", "NewGroup", "NewTopic", "flush_logs"]


def flush_logs(timeout: float = 2.0) -> None:
    """Wait until the handlers of `logging` have processed all records of clients; a background thread calls them.

    Call it before a test looks at what was logged, with `caplog` or `assertLogs`. Thread-safe.

    Args:
        timeout: seconds to wait at most.
    """
    client_log.flush(timeout)


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
