"""Fixtures for tests of programs that use minimq: a real cluster, and topics and groups for each test.

pytest loads them from `minimq.testing.plugin` once minimq is installed.
"""

from minimq.connection import client_log
from minimq.testing.names import NewGroup, NewTopic

__all__ = ["NewGroup", "NewTopic", "flush_logs"]


def flush_logs(timeout: float = 2.0) -> None:
    """Wait until the handlers of `logging` have processed all records of clients; those of event loops take a thread.

    Call it before a test checks the log with `caplog` or `assertLogs`. Thread-safe.

    Args:
        timeout: seconds to wait at most.
    """
    client_log.flush(timeout)
