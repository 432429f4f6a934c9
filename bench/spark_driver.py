"""A Spark driver in its own process, which copies topics one after the other."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import pyspark
from process_tree import Descendant, descendants, kill_all

#: Master by `with_executors`. Executors as processes take twice as long to start. Both retry tasks.
MASTERS = {False: "local[2,20]", True: "local-cluster[2,1,1024]"}
_EXECUTOR = "CoarseGrainedExecutorBackend"
#: End of the command line of Python workers, and of the daemon that forks them.
_WORKER = "pyspark.daemon pyspark.worker"
_SCRIPT = Path(__file__).with_name("copying_job.py")
_READY_S = 300.0
_STOP_S = 120.0
_LOOK_AGAIN_S = 0.02


@dataclass(frozen=True)
class Job:
    """A streaming query that copies the present messages of a topic; another job with equal values continues it."""

    nameserver: str
    source: str
    target: str
    checkpoint: str
    batch_rows: int
    keyed: bool
    transactional: bool


class DriverGone(Exception):
    """The driver has ended without reporting the outcome of its query."""


class SparkDriver:
    """A driver as a child process.

    Args:
        folder: folder for its logs and those of its executors.
        number: its number in the folder.
        with_executors: whether executors are separate processes.
        java_options: options of all Java processes.
    """

    def __init__(self, folder: Path, number: int, *, with_executors: bool, java_options: str = "") -> None:
        self.with_executors = with_executors
        self.log_path = folder / f"driver-{number}.log"
        home = _spark_home(folder / "spark")
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(home)}
        environment |= {"SPARK_LOCAL_DIRS": str(home / "local"), "SPARK_LOCAL_IP": "127.0.0.1"}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        with self.log_path.open("wb") as log_file:
            self._process = subprocess.Popen(
                [sys.executable, str(_SCRIPT), MASTERS[with_executors], java_options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log_file,
                text=True,
                env=environment,
                process_group=0,  # so that Ctrl-C reaches only the parent
            )
        self._is_ready = False
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="driver-answers", daemon=True).start()

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def wait_ready(self) -> None:
        """Wait until it accepts jobs. Raises `DriverGone`."""
        if not self._is_ready and self._answer(_READY_S) is None:
            raise DriverGone(f"the driver is not ready after {_READY_S:.0f} s; its log is {self.log_path}")
        self._is_ready = True

    def begin(self, job: Job) -> None:
        """Submit a query, which starts when the former one has ended. Raises `DriverGone`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(asdict(job)) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise self._gone() from None

    def ended(self, timeout_s: float) -> str | None:
        """Return why the query has ended, "" if everything is copied; None if it has not ended within `timeout_s`.

        Raises:
            DriverGone: the driver has ended.
        """
        return self._answer(timeout_s)

    @property
    def tree(self) -> list[Descendant]:
        """All its descendants."""
        return descendants(self._process.pid)

    @property
    def executors(self) -> list[Descendant]:
        """The Java processes of executors."""
        return [process for process in self.tree if _EXECUTOR in process.command]

    @property
    def workers(self) -> list[Descendant]:
        """The Python processes that read and write for tasks."""
        alike = [process for process in self.tree if process.command.rstrip().endswith(_WORKER)]
        origins = {process.pid for process in alike}
        return [process for process in alike if process.parent in origins]

    @property
    def executor_trees(self) -> list[Descendant]:
        """The executors and their descendants."""
        found: dict[int, Descendant] = {}
        for process in self.tree:  # parents first
            if _EXECUTOR in process.command or process.parent in found:
                found[process.pid] = process
        return list(found.values())

    def kill(self, spared: Iterable[Descendant] = ()) -> list[Descendant]:
        """Kill it and all its descendants, like a failure of their machine.

        Args:
            spared: descendants that are not killed.

        Returns:
            All its descendants. The caller has to reap them, as they are orphans.
        """
        tree, left = self.tree, set(spared)
        self._process.kill()
        kill_all(process for process in tree if process not in left)
        self._process.wait()
        return tree

    def stop(self) -> None:
        """Stop it cleanly, or kill it after a timeout."""
        tree = self.tree
        if self._process.stdin is not None and self.lives:
            self._process.stdin.close()
        deadline = time.monotonic() + _STOP_S
        while (self.lives or any(process.lives for process in tree)) and time.monotonic() < deadline:
            time.sleep(_LOOK_AGAIN_S)
        self._process.kill()
        self._process.wait()
        kill_all(tree)

    def _answer(self, timeout_s: float) -> str | None:
        try:
            line = self._lines.get(timeout=timeout_s) if timeout_s > 0 else self._lines.get_nowait()
        except queue.Empty:
            return None
        if not line:
            self._lines.put("")  # for the next call
            raise self._gone()
        answer: str = json.loads(line)["error"]
        return answer

    def _gone(self) -> DriverGone:
        return DriverGone(f"the driver has ended with status {self._process.poll()}; its log is {self.log_path}")

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if line.startswith("{"):
                    self._lines.put(line)
        self._lines.put("")


def _spark_home(folder: Path) -> Path:
    """Return a folder with links to Spark, where executors leave their files."""
    if folder.exists():
        return folder
    folder.mkdir()
    for path in Path(pyspark.__file__).parent.iterdir():
        if path.name != "work":
            (folder / path.name).symlink_to(path)
    return folder


class Drivers:
    """A pool of drivers of both kinds, started on demand.

    Args:
        folder: folder for their logs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[SparkDriver] = []
        self._classes = folder / "classes.jsa"

    def archive_classes(self, job: Job) -> None:
        """Run a job, and archive the classes that Java loads for it: later drivers start in a third of the time.

        Raises:
            SystemExit: the query has failed.
        """
        options = f"-XX:ArchiveClassesAtExit={self._classes}"
        driver = SparkDriver(self._folder, len(self._started), with_executors=False, java_options=options)
        self._started.append(driver)
        try:
            driver.wait_ready()
            driver.begin(job)
            if error := driver.ended(_READY_S):
                raise SystemExit(f"a query fails although nothing disturbs it: {error}")
        finally:
            driver.stop()

    def ready(self, *, with_executors: bool, spare: bool = False) -> SparkDriver:
        """Return a running driver.

        Args:
            with_executors: whether executors should be separate processes.
            spare: whether to start another driver in advance, as this one will be killed.
        """
        # With a missing archive file, Java would not even use its default archive.
        options = f"-XX:SharedArchiveFile={self._classes}" if self._classes.exists() else ""
        alike = [one for one in self._started if one.lives and one.with_executors == with_executors]
        while len(alike) < 1 + spare:
            number = len(self._started)
            one = SparkDriver(self._folder, number, with_executors=with_executors, java_options=options)
            self._started.append(one)
            alike.append(one)
        alike[0].wait_ready()
        return alike[0]

    def stop(self) -> None:
        for one in self._started:
            one.stop()
