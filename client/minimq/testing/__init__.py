"""Fixtures for tests of programs that use minimq: a real cluster, and for each test topics and groups of its own.

pytest finds them by itself once minimq is installed; `minimq.testing.plugin` has them.
"""

from minimq.testing.names import NewGroup, NewTopic

__all__ = ["NewGroup", "NewTopic"]
