"""A standalone Spark cluster: a master and two workers, each a process of its own, on the loopback interface."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pyspark

from support.waiting import wait_until

HOME: Final = Path(pyspark.__file__).parent
#: Seconds for the start of a server, on a machine with other work.
START_S: Final = 120.0
#: A short job has little from the compiler for long ones.
_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"
_CONNECT: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"


class SparkCluster:
    """A cluster that runs inside of a `with` block.

    Args:
        folder: for logs, and for what the executors unpack.

    Attributes:
        master: its address.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running = ExitStack()
        self.master = ""

    def __enter__(self) -> Self:
        with self._running:  # what has started ends when the next one does not start
            log = self._start("master", [HOME / "bin/spark-class", _MASTER, *_listen()])
            self.master = "spark://127.0.0.1:" + _told(log, r"'sparkMaster' on port (\d+)")
            for number in range(2):
                folder = self._nodes / str(number)
                arguments = [*_listen(), "--cores", "1", "--memory", "1g", "--work-dir", str(folder)]
                log = self._start(f"worker-{number}", [HOME / "bin/spark-class", _WORKER, self.master, *arguments])
                _told(log, "(Successfully registered with master)")
            self._running = self._running.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._running.close()

    @property
    def _nodes(self) -> Path:
        return self._folder / "nodes"

    def python_of_driver(self, python: Path) -> Path:
        """Return the path of a Python that is there for a driver, and not there for executors."""
        path = self._folder / f"driver-{len(list(self._folder.iterdir()))}"
        path.write_text(
            f'#!/bin/sh\ncase "$PWD" in "{self._nodes}"/*) echo "no $0 on this node" >&2; exit 127;; esac\n'
            f'exec "{python}" "$@"\n'
        )
        path.chmod(0o755)
        return path

    def submit(self, *arguments: str | Path, options: list[str], folder: Path, environment: Mapping[str, str]) -> str:
        """Run a job with `spark-submit`, and return what it has written.

        Args:
            arguments: the script, and what it is given.
            options: of `spark-submit`.
            folder: where it is run.
            environment: more variables.
        """
        done = subprocess.run(
            [*self._command(options), *arguments],
            cwd=folder,
            env=_environment(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=540,
            check=False,
        )
        return done.stdout

    def connect_server(self, *, options: list[str], environment: Mapping[str, str]) -> str:
        """Start a Connect server, which ends with the cluster, and return its address."""
        local = "spark.connect.grpc.binding.address=127.0.0.1"
        more = ["--conf", local, "--conf", "spark.connect.grpc.binding.port=0", "--class", _CONNECT]
        log = self._start(f"connect-{len(list(self._folder.iterdir()))}", self._command([*options, *more]), environment)
        return "sc://127.0.0.1:" + _told(log, r"Spark Connect server started at: \S*:(\d+)")

    def _command(self, options: list[str]) -> list[str | Path]:
        settings = {
            "spark.executor.extraJavaOptions": _JAVA,
            "spark.ui.enabled": "false",
            "spark.cores.max": "1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
        }
        given = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        return [HOME / "bin/spark-submit", "--master", self.master, "--driver-java-options", _JAVA, *given, *options]

    def _start(self, name: str, command: list[str | Path], environment: Mapping[str, str] | None = None) -> Path:
        """Start a server, and return its log."""
        log = self._folder / f"{name}.log"
        with log.open("w") as output:
            started = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=_environment(environment or {})
            )
        self._running.callback(_end, started)
        return log


def _listen() -> list[str]:
    return ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    ours = {"PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"}
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    return {**kept, "SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1", **more}


def _told(log: Path, pattern: str) -> str:
    """Wait until a server has logged something, and return it."""
    [told, *_] = wait_until(lambda: re.findall(pattern, log.read_text()), START_S, what=f"{pattern} in {log}")
    return str(told)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
