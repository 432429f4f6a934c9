"""Fixtures for tests of programs that use minimq: a real cluster, and topics and groups for each test.

pytest loads them from `minimq.testing.plugin` once minimq is installed.
"""

from minimq.testing.names import NewGroup, NewTopic

__all__ = ["NewGroup", "NewTopic"]
