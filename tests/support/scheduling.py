"""The distribution of tests to the workers of a parallel run."""

from __future__ import annotations

from pathlib import PurePosixPath

from xdist.scheduler import LoadFileScheduling

#: Folders whose tests stay together, because they share what is expensive to start: a session of Spark.
TOGETHER = ("tests/spark",)


class GroupScheduling(LoadFileScheduling):  # type: ignore[misc] # xdist brings no types
    """A distribution of whole test files, and of some whole folders, in the order of `testpaths`.

    xdist's own groups, `--dist loadgroup`, have no effect in pytest 9.2, and would change the names of the tests.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group_of(super()._split_scope(nodeid))


def group_of(file: str) -> str:
    """Return the group of the tests in a file."""
    return next((folder for folder in TOGETHER if PurePosixPath(file).is_relative_to(folder)), file)
