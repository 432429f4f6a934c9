"""A single-node Kafka broker as a child process, run from its jars, for comparisons."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from types import TracebackType
from typing import Self

from minimq.local.server_process import free_port

_READY_S = 120.0
_STOP_S = 30.0
_LOOK_AGAIN_S = 0.1
#: With Kafka's default, the operating system decides when to flush.
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/data
num.partitions={partitions}
auto.create.topics.enable=true
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


class KafkaServer:
    """A broker that is its own controller. A context manager.

    Args:
        jars: folder with `org.apache.kafka:kafka_2.13` and its dependencies.
        folder: an empty folder for data and logs.
        partitions: number of partitions of topics, which are created automatically.
    """

    def __init__(self, jars: Path, folder: Path, partitions: int) -> None:
        self._classes = f"{jars}/*"
        self._folder = folder
        port, controller = free_port(), free_port()
        self.address = f"127.0.0.1:{port}"
        self._file = folder / "server.properties"
        self._file.write_text(
            _PROPERTIES.format(port=port, controller=controller, folder=folder, partitions=partitions)
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        """Start it, and return when it accepts connections. Raises `SystemExit` if it does not."""
        name = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        log_path = self._folder / "kafka.log"
        with log_path.open("wb") as log_file:
            made = subprocess.run(
                [*self._java("kafka.tools.StorageTool"), "format", "-t", name, "-c", str(self._file)],
                check=False,
                stdout=log_file,
                stderr=subprocess.STDOUT,
            )
            if made.returncode:
                raise SystemExit(f"Kafka cannot format its folder: {log_path.read_text()[-2000:]}")
            self._process = subprocess.Popen(
                [*self._java("kafka.Kafka"), str(self._file)], stdout=log_file, stderr=subprocess.STDOUT
            )
        give_up = time.monotonic() + _READY_S
        while not self._takes_connections():
            if self._process.poll() is not None or time.monotonic() >= give_up:
                self._end()
                raise SystemExit(f"Kafka does not start: {log_path.read_text()[-2000:]}")
            time.sleep(_LOOK_AGAIN_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        shutil.rmtree(self._folder / "data", ignore_errors=True)

    def _end(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _java(self, main: str) -> list[str]:
        home = os.environ.get("JAVA_HOME")
        java = f"{home}/bin/java" if home else "java"
        return [java, "-Xmx1g", "-Xms1g", "-XX:+UseG1GC", "-cp", self._classes, main]

    def _takes_connections(self) -> bool:
        host, port = self.address.split(":")
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            return False
        return True
