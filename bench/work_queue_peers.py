"""Other brokers for the comparison of work queues: real servers on free ports of this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Self

from process_tree import adopt_orphans, descendants, kill_all, reap

from minimq.local.server_process import free_port

START_S = 60.0


def program(*names: str) -> str | None:
    """Return the first of these programs that is installed."""
    return next(filter(None, map(shutil.which, names)), None)


def missing(package: str, server: str | None, debian: str) -> str | None:
    """Return what is missing and how to install it; None if nothing is missing."""
    if find_spec(package) is None:
        return f"the Python package {package}: pip install {package}"
    return None if server else f"the program {debian}: apt-get install {debian}"


class Redis:
    """Redis Streams with a consumer group. Each command is synced to disk before its answer."""

    name: ClassVar = "Redis Streams"
    worker: ClassVar = "redis"
    note = "appendfsync always"

    @staticmethod
    def server() -> str | None:
        """Return the path of the server, if it is installed."""
        return program("redis-server")

    @classmethod
    def missing(cls) -> str | None:
        """Return what is missing and how to install it."""
        return missing("redis", cls.server(), "redis-server")

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        server = self.server()
        assert server
        flags = f"--bind 127.0.0.1 --port {self.port} --appendonly yes --appendfsync always --dir {folder}".split()
        self._process = subprocess.Popen([server, *flags], stdout=subprocess.DEVNULL)
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def fill(self, topic: str, count: int, body: bytes) -> None:
        """Store messages, and create the group of the workers."""
        redis: Any = import_module("redis")
        client = redis.Redis(port=self.port)
        until = time.monotonic() + START_S
        while True:
            try:
                client.ping()
                break
            except redis.ConnectionError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)
        for begin in range(0, count, 1000):
            pipeline = client.pipeline(transaction=False)
            for _ in range(min(1000, count - begin)):
                pipeline.xadd(topic, {"b": body})
            pipeline.execute()
        client.xgroup_create(topic, "workers", id="0")


class RabbitMQ:
    """A quorum queue on one node of RabbitMQ: each ack is logged and synced to disk."""

    name: ClassVar = "RabbitMQ quorum queue"
    worker: ClassVar = "rabbitmq"
    note = "prefetch of 2 takes"

    @staticmethod
    def server() -> str | None:
        """Return the path of the server, if it is installed."""
        return program("/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server")

    @classmethod
    def missing(cls) -> str | None:
        """Return what is missing and how to install it."""
        return missing("pika", cls.server(), "rabbitmq-server")

    def __init__(self, folder: Path) -> None:
        server = self.server()
        assert server
        self.port, nodes = free_port(), free_port()
        config, plugins = folder / "rabbitmq.conf", folder / "enabled_plugins"
        config.write_text(f"listeners.tcp.1 = 127.0.0.1:{self.port}\n")
        plugins.write_text("[].\n")
        environment = os.environ | {
            "HOME": str(folder),
            "RABBITMQ_NODENAME": "bench@localhost",
            "RABBITMQ_CONFIG_FILE": str(config),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_DIST_PORT": str(nodes),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"-start_epmd false -erl_epmd_port {nodes}"
            " -kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        adopt_orphans()  # the script starts a daemon and exits
        subprocess.Popen([server], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    @property
    def pid(self) -> int:
        """The process id of the node, which the script has started."""
        [node] = (process for process in descendants(os.getpid()) if "beam.smp" in process.command)
        return node.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        ours = [process for process in descendants(os.getpid()) if re.search(r"beam|erl|epmd", process.command)]
        kill_all(ours)
        time.sleep(0.5)
        reap(ours)

    def fill(self, topic: str, count: int, body: bytes) -> None:
        """Send messages to a quorum queue, and wait until it has them."""
        pika: Any = import_module("pika")
        connection, until = None, time.monotonic() + START_S
        while connection is None:
            try:
                connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port))
            except pika.exceptions.AMQPError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.5)
        channel = connection.channel()
        channel.queue_declare(topic, durable=True, arguments={"x-queue-type": "quorum"})
        persistent = pika.BasicProperties(delivery_mode=2)
        for _ in range(count):
            channel.basic_publish("", topic, body, persistent)
        while channel.queue_declare(topic, passive=True).method.message_count < count:
            time.sleep(0.2)
        connection.close()
