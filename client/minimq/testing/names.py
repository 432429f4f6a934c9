"""Unique names of topics and groups for one test, which are deleted after it."""

from __future__ import annotations

import itertools
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from minimq_common.errors import GroupNotFound, TopicNotFound

if TYPE_CHECKING:  # every run of pytest imports this file, even if it does not use minimq
    from minimq.admin.admin import Admin
    from minimq.admin.descriptions import Compaction

_numbers = itertools.count(1)
#: Of the name of a test. Short enough for a suffix and for the prefix of a dead letter topic.
_MAX_CHARACTERS = 60


class _Names:
    def __init__(self, admin: Admin, test: str) -> None:
        self._admin, self._test = admin, test
        self._made: list[str] = []

    def _new_name(self) -> str:
        self._made.append(unique_name(self._test))
        return self._made[-1]


class NewTopic(_Names):
    """Makes topics for one test: `minimq_new_topic(queues=1)`. Not thread-safe."""

    def __call__(self, *, queues: int = 4, fifo: bool = False, compaction: Compaction | None = None) -> str:
        """Create a topic on all masters, and return its name. Raises as `Admin.create_topic` does."""
        name = self._new_name()
        self._admin.create_topic(name, queues=queues, fifo=fifo, compaction=compaction)
        return name

    def delete_all(self) -> None:
        """Delete the topics that are still there."""
        while self._made:
            with suppress(TopicNotFound):  # the test has deleted it
                self._admin.delete_topic(self._made.pop())


class NewGroup(_Names):
    """Names consumer groups for one test. Not thread-safe."""

    def __call__(self) -> str:
        """Return a name that no other group has."""
        return self._new_name()

    def delete_all(self) -> None:
        """Delete the groups with their own topics, even if members were not closed."""
        while self._made:
            with suppress(GroupNotFound):  # no consumer had the name
                self._admin.delete_group(self._made.pop(), force=True, dead_letters=True)


def unique_name(test: str) -> str:
    """Return a legal name that is unique on this machine and begins with the name of a test."""
    words = re.sub(r"[^A-Za-z0-9]+", "-", test).strip("-")[:_MAX_CHARACTERS]
    return f"{words}-{os.getpid()}-{next(_numbers)}"
