"""A cluster in a container with the image of `docker/Dockerfile`, started with the library Testcontainers."""

from __future__ import annotations

import time
from typing import Any, Self

from docker.errors import DockerException
from testcontainers.core.config import ConnectionMode
from testcontainers.core.container import DockerContainer

from minimq.admin.admin import Admin
from minimq.arguments import waiting_s
from minimq_common.errors import DeadlineExceeded, MinimqError, Unavailable
from minimq_common.security.credentials import Credentials

_NAMESERVER_PORT, _BROKER_PORT = 9876, 10911
_SECRETS = "/etc/minimq/secrets"
_ADVERTISED = "/tmp/advertised"
#: The broker has to advertise the host's port, which Docker chooses when the container starts. So the servers wait for
#: a file with the address.
_COMMAND = (
    f"until [ -s {_ADVERTISED} ]; do sleep 0.05; done; "
    f'minimq-nameserver & exec minimq-broker --advertise "$(cat {_ADVERTISED})"'
)
_ENVIRONMENT = {
    "MINIMQ_NAMESERVER_LISTEN": f"0.0.0.0:{_NAMESERVER_PORT}",
    "MINIMQ_NAMESERVER_START_GRACE": "0",  # no broker ran before
    "MINIMQ_BROKER_LISTEN": f"0.0.0.0:{_BROKER_PORT}",
    "MINIMQ_BROKER_NAMESERVER": f"127.0.0.1:{_NAMESERVER_PORT}",
    # A developer's disk is often nearly full of other files.
    "MINIMQ_BROKER_DISK_DELETE_EARLY": "1",
    "MINIMQ_BROKER_DISK_REJECT": "1",
}
_ANSWER_S = 1.0
_LOOK_AGAIN_S = 0.05
_MAX_LOG = 4000


class MinimqContainer(DockerContainer):
    """A name server and a broker in one container, at free ports of this machine. A context manager.

        with MinimqContainer() as container:
            producer = Producer(container.nameserver)

    Set options of the servers by environment variables: `with_env("MINIMQ_BROKER_RETENTION", "3600")`.

    Args:
        image: its name; `docker build -t minimq --target server -f docker/Dockerfile .` in a checkout makes it.
        secure: use TLS and user keys; clients then need the `credentials`.
        timeout_s: seconds after the start of the container until it must serve.
        **others: arguments of `DockerContainer`.

    Attributes:
        credentials: credentials of the user `admin` once the container has started; None without TLS.

    Raises:
        InvalidArgument: `timeout_s` is not a number of seconds.
        Unavailable: Docker does not answer.
    """

    def __init__(self, image: str = "minimq", *, secure: bool = False, timeout_s: float = 60.0, **others: Any) -> None:
        self._timeout_s = waiting_s(timeout_s, "timeout_s")
        self._secure = secure
        self.credentials: Credentials | None = None
        try:
            super().__init__(image, **others)
        except DockerException as error:
            raise Unavailable(
                f"Docker does not answer: {error}; start it, or say in DOCKER_HOST where it is"
            ) from error
        self.env = {**_ENVIRONMENT, **self.env}
        if secure:
            self.with_envs(MINIMQ_NAMESERVER_SECRETS=f"{_SECRETS}/server", MINIMQ_BROKER_SECRETS=f"{_SECRETS}/server")
        self.with_command(["sh", "-c", _COMMAND])

    @property
    def nameserver(self) -> str:
        """The address of the name server, for clients."""
        return self._published(_NAMESERVER_PORT)

    def start(self) -> Self:
        """Start the container, and return when its broker serves. After an error, the container is removed.

        Raises:
            Unavailable: Docker does not start it, or it has ended; the text has the end of its log.
            DeadlineExceeded: it does not serve in time; the text has the end of its log.
        """
        try:
            super().start()
        except DockerException as error:
            self.stop()
            raise Unavailable(
                f"Docker does not start a container of {self.image}: {error}; if it has no such image, make it in a "
                "checkout of minimq: docker build -t minimq --target server -f docker/Dockerfile ."
            ) from error
        deadline = time.monotonic() + self._timeout_s
        try:
            if self._secure:
                self._make_secrets()
            self._run("sh", "-c", f"echo {self._published(_BROKER_PORT)} > {_ADVERTISED}")
            self._wait_until_it_serves(deadline)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self, force: bool = True, delete_volume: bool = True) -> None:
        """Stop the container, and remove it with its data. Idempotent."""
        super().stop(force, delete_volume)
        self._container = None

    def _configure(self) -> None:
        docker = self.get_docker_client()
        # Publish the ports for this machine only, unless Docker runs on another one.
        is_here = docker.get_connection_mode() is ConnectionMode.docker_host and _is_local(docker.host())
        for port in (_NAMESERVER_PORT, _BROKER_PORT):
            self.ports[str(port)] = ("127.0.0.1",) if is_here else None  # type: ignore[assignment] # docker takes it

    def _published(self, port: int) -> str:
        host = self.get_container_host_ip()
        return f"{'127.0.0.1' if _is_local(host) else host}:{self.get_exposed_port(port)}"

    def _make_secrets(self) -> None:
        host = self.nameserver.rpartition(":")[0]
        self._run("minimq", "secure", "init", _SECRETS, "--host", host, "--server", self.nameserver)
        self.credentials = Credentials.from_text(self._run("cat", f"{_SECRETS}/admin.minimq"))

    def _run(self, *command: str) -> str:
        status, output = self.exec(list(command))
        if status:
            raise Unavailable(f"{' '.join(command)} failed in a container of {self.image}: {output.decode()}")
        return output.decode()

    def _wait_until_it_serves(self, deadline: float) -> None:
        with Admin(self.nameserver, timeout_s=_ANSWER_S, credentials=self.credentials or "") as admin:
            while (reason := _reason_to_wait(admin)) is not None:
                self.reload()
                if self.status == "exited":
                    raise Unavailable(f"the container of {self.image} has ended; {self._log_tail()}")
                if time.monotonic() >= deadline:
                    raise DeadlineExceeded(
                        f"the container of {self.image} does not serve after {self._timeout_s:g} s: {reason}; "
                        f"{self._log_tail()}"
                    )
                time.sleep(_LOOK_AGAIN_S)

    def _log_tail(self) -> str:
        log = b"".join(self.get_logs()).decode(errors="replace")
        return f"the end of its log:\n{log[-_MAX_LOG:]}"


def _reason_to_wait(admin: Admin) -> str | None:
    """Return why clients cannot use the broker yet; None if they can."""
    try:
        replicas = admin.broker_status()
    except MinimqError as error:
        return error.message
    if not replicas:
        return "no broker is registered"
    return next((f"{each.broker_name}: {each.error}" for each in replicas if each.report is None), None)


def _is_local(host: str) -> bool:
    return host in {"localhost", "127.0.0.1"}
