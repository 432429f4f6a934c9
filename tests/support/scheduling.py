"""The distribution of tests to the workers of a parallel run."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

#: Files of one folder whose tests stay together, because they share what is expensive to start: a session of Spark.
#: Two sessions, so that neither is what all others have to wait for; the other files of the folder need none.
TOGETHER = {
    "tests/spark, tables": (
        "batch_read",
        "batch_write",
        "compacted_topic",
        "confluent_avro",
        "credentials",
        "finding",
        "limits",
        "outages",
        "page",
        "recreated_topics",
        "slaves",
        "spark_job",
    ),
    "tests/spark, streams": ("flights_examples", "flights_windows", "stream_read", "stream_write"),
}
_GROUPS = {f"tests/spark/test_{name}.py": group for group, names in TOGETHER.items() for name in names}
#: They share a cluster with TLS.
_GROUPS["tests/security/test_renewal.py"] = "tests/security/test_links.py"
#: They share a Chromium, and the cluster that it looks at.
_GROUPS["tests/console/browser/test_look.py"] = "tests/console/browser/test_operator_tasks.py"


class GroupScheduling(LoadFileScheduling):  # type: ignore[misc] # xdist brings no types
    """A distribution of whole test files, and of some files together, in the order of `testpaths`.

    xdist's own groups, `--dist loadgroup`, have no effect in pytest 9.2, and would change the names of the tests.
    """

    def schedule(self) -> None:
        """Give each worker two files: one that replaces a crashed worker would wait for the second for ever."""
        super().schedule()
        for worker in self.nodes:
            self._reschedule(worker)

    def _split_scope(self, nodeid: str) -> str:
        return group_of(super()._split_scope(nodeid))


def group_of(file: str) -> str:
    """Return the group of the tests in a file."""
    return _GROUPS.get(file, file)
