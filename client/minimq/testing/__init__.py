"""Fixtures for tests of programs that use minimq: a real cluster, and topics and groups for each test.

pytest loads them from `minimq.testing.plugin` once minimq is installed.

`MinimqContainer` is a cluster in a container: `pip install 'minimq[testcontainers]'`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from minimq.connection import client_log
from minimq.testing.names import NewGroup, NewTopic

__all__ = ["MinimqContainer", "NewGroup", "NewTopic", "flush_logs"]


def flush_logs(timeout: float = 2.0) -> None:
    """Wait until the handlers of `logging` have processed all records of clients; those of event loops take a thread.

    Call it before a test checks the log with `caplog` or `assertLogs`. Thread-safe.

    Args:
        timeout: seconds to wait at most.
    """
    client_log.flush(timeout)


if TYPE_CHECKING:
    from minimq.testing.minimq_container import MinimqContainer
else:

    def __getattr__(name: str) -> object:
        if name != "MinimqContainer":  # the only name that needs an extra
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
