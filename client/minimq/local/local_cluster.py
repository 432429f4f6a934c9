"""A whole cluster on this machine: for tests, for trying things out, and for `minimq local`."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import Self, Unpack

from minimq.arguments import check_between
from minimq.connection.client import ClusterClient
from minimq.local.certificate_authority import CertificateAuthority
from minimq.local.server_process import BrokerProcess, ServerProcess, flags_from
from minimq.options import NoOptions, reject_options
from minimq_common.errors import (
    CannotListen,
    Closed,
    DeadlineExceeded,
    InvalidArgument,
    SystemBusy,
    TransportError,
    UsageError,
)
from minimq_common.names import check_cluster
from minimq_common.security.certificates import Trust
from minimq_common.security.channel_security import open_credentials
from minimq_common.text_units import check_path, expanded

_START_TRIES = 3
_REGISTERED_S = 15.0
_ANSWER_S = 1.0
#: A certificate that expires within this many seconds is renewed at a start.
_RENEW_S = 30 * 86_400
_LOOK_AGAIN_S = 0.01
#: Bound of name servers, and of slaves of each broker: each is a process of this machine.
_MAX_SERVERS = 99

_SET_FOR_NAMESERVERS = frozenset({"listen", "controller_dir"})
_SET_FOR_BROKERS = frozenset(
    {"name", "id", "broker_id", "cluster", "listen", "advertise", "nameserver", "nameservers", "data_dir", "controller"}
)

#: A developer's disk is often nearly full of other files: do not delete or reject messages because of that.
_SHARED_DISK = ("--disk-delete-early=1", "--disk-reject=1")


class LocalCluster:
    """Name servers and brokers as child processes of this one. A context manager; thread-safe.

        with LocalCluster(brokers=2) as cluster:
            producer = Producer(cluster.nameserver)
            cluster.brokers[0].kill()

    The servers end with the `with` block, with this process, and also when this process is killed. Every server logs to
    a file in the data directory.

    Attributes:
        data_dir: holds the data and the logs of all servers.
        nameservers: the name servers; the first one is the controller when there are slaves.
        brokers: the brokers, named broker-a, broker-b, and so on; slaves are named after their master: broker-a-1,
            broker-a-2, and so on. The master changes when it fails: see
            `BrokerProcess.current_role`.

    Raises:
        UsageError: the program is frozen, so it has no Python interpreter to start servers with.
        InvalidArgument: an argument is wrong.
    """

    def __init__(
        self,
        brokers: int = 2,
        slaves: int = 0,
        port: int = 0,
        data_dir: str | Path | None = None,
        *,
        nameservers: int = 1,
        cluster: str = "default",
        secure: bool = False,
        broker_options: Mapping[str, object] | None = None,
        nameserver_options: Mapping[str, object] | None = None,
        **unknown: Unpack[NoOptions],
    ) -> None:
        reject_options(unknown, LocalCluster)
        check_path("data_dir", data_dir or "")
        if getattr(sys, "frozen", False):
            raise UsageError(
                "LocalCluster does not work in a frozen program (PyInstaller and the like): it starts servers with the "
                "Python interpreter, and this program has none. Run the servers outside of it, for example with "
                "`minimq local`"
            )
        check_between("slaves", slaves, 0, _MAX_SERVERS)
        check_between("brokers", brokers, 1, len(ascii_lowercase))
        check_between("nameservers", nameservers, 1, _MAX_SERVERS)
        if not 0 <= port <= 65_536 - nameservers:
            raise InvalidArgument(f"port is {port}: it must be 0 to 65535")
        self._cluster = check_cluster(cluster)
        self._broker_flags = flags_from(broker_options or {}, _SET_FOR_BROKERS)
        self._nameserver_flags = flags_from(nameserver_options or {}, _SET_FOR_NAMESERVERS)
        self._is_temporary = data_dir is None
        self.data_dir = Path(tempfile.mkdtemp(prefix="minimq-")) if data_dir is None else expanded(data_dir).absolute()
        self._authority = CertificateAuthority(self.data_dir / "secrets") if secure else None
        self._secret_flags = [] if self._authority is None else [f"--secrets={self._authority.server}"]
        self.nameservers = tuple(
            ServerProcess(
                "nameserver",
                f"nameserver-{number + 1}",
                self.data_dir,
                port=port + number if port else 0,
                flags=self._flags_of_nameserver,
                settled=self._wait_registered,
            )
            for number in range(nameservers)
        )
        self._has_slaves = slaves > 0
        self.brokers = tuple(
            self._new_broker(f"broker-{letter}", broker_id)
            for letter in ascii_lowercase[:brokers]
            for broker_id in range(1 + slaves)
        )
        # A forked copy of this process must not stop the servers at its exit.
        self._owner = os.getpid()
        atexit.register(self.stop)
        self._lock = threading.Lock()  # protects the following; never held during a wait
        self._started = False
        self._closed = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def nameserver(self) -> str:
        """The addresses of all name servers, in the format of clients: "HOST:PORT[,HOST:PORT]"."""
        return ",".join(server.address for server in self.nameservers)

    @property
    def credentials(self) -> Path | None:
        """The credentials file of the user `admin`, which exists once the cluster has started; None without TLS."""
        return None if self._authority is None else self._authority.admin

    def start(self) -> None:
        """Start all servers, and return when every broker is registered with every name server. Idempotent.

        By then, slaves are in the in-sync set.

        Raises:
            MinimqError: a server did not start; the text has the end of its log. All servers are stopped.
            Closed: the cluster was stopped.
        """
        with self._lock:
            if self._closed:
                raise Closed("the cluster was stopped")
            if self._started:
                return
            self._started = True
        try:
            try:
                self.data_dir.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InvalidArgument(f"cannot make the folder {self.data_dir}: {error.strerror}") from None
            self._make_secrets()
            _launch_all(self.nameservers)
            if self._authority is not None:  # the credentials contain the addresses, which the launch may have changed
                self._authority.issue("admin", [server.address for server in self.nameservers])
            _launch_all(self.brokers)
            self._wait_registered()
            self._wait_in_sync()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all servers for good, brokers first, and remove the data if it is temporary. Idempotent.

        Does nothing in a forked copy of the process that made the cluster.
        """
        if os.getpid() != self._owner:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self.stop)
        # Brokers first, so that they can unregister from the name servers.
        for servers in (self.brokers, self.nameservers):
            for server in servers:
                server.close()
                server.ask_to_stop()
            for server in servers:
                server.wait_stopped()
        if self._is_temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def server(self, name: str) -> ServerProcess:
        """Return a server by name, such as "broker-a". Raises `InvalidArgument`."""
        servers = {server.name: server for server in (*self.nameservers, *self.brokers)}
        if name not in servers:
            raise InvalidArgument(f"there is no server {name!r}: the cluster has {', '.join(servers)}")
        return servers[name]

    def _make_secrets(self) -> None:
        if self._authority is None:
            return
        if not self._authority.exists:
            self._authority.init([], [])
        elif self._authority.server_certificate().ends_at < time.time() + _RENEW_S:
            self._authority.renew()

    def _new_broker(self, broker_name: str, broker_id: int) -> BrokerProcess:
        name = f"{broker_name}-{broker_id}" if broker_id else broker_name

        def flags(address: str, _first: bool) -> list[str]:
            own = [f"--name={broker_name}", f"--cluster={self._cluster}", f"--data-dir={self.data_dir / name}"]
            if self._has_slaves:
                own += [f"--id={broker_id}", f"--controller={self.nameservers[0].address}"]
            # After the user's options, which must not override which replica founds the set.
            founds = ["--role=slave"] if broker_id else []
            where = [*_SHARED_DISK, f"--listen={address}", f"--nameserver={self.nameserver}"]
            return [*own, *where, *self._secret_flags, *self._broker_flags, *founds]

        return BrokerProcess(
            name,
            self.data_dir,
            broker_name=broker_name,
            broker_id=broker_id,
            flags=flags,
            settled=self._wait_registered,
            trust=self._trust,
        )

    def _trust(self) -> Trust | None:
        opened = open_credentials(self.credentials or "")
        return None if opened is None else opened.trust()

    def _flags_of_nameserver(self, address: str, first: bool) -> list[str]:
        # At the first start no broker ran before, so there is none to wait for.
        grace = ["--start-grace=0"] if first else []
        is_controller = self._has_slaves and address == self.nameservers[0].address
        controller = [f"--controller-dir={self.nameservers[0].data_dir}"] if is_controller else []
        return [f"--listen={address}", *grace, *controller, *self._secret_flags, *self._nameserver_flags]

    def _wait_registered(self) -> None:
        deadline = time.monotonic() + _REGISTERED_S
        for nameserver in self.nameservers:
            client = ClusterClient(nameserver.address, _ANSWER_S, credentials=self.credentials or "")
            try:
                # Checked in each round, because a test may kill or pause servers meanwhile.
                while nameserver.running and not nameserver.paused:
                    absent = self._absent_from(client)
                    if not absent:
                        break
                    if time.monotonic() >= deadline:
                        raise DeadlineExceeded(
                            f"{', '.join(absent)} not registered with {nameserver.name} after {_REGISTERED_S} s; "
                            f"{self._log_excerpt(absent[0])}"
                        )
                    time.sleep(_LOOK_AGAIN_S)
            finally:
                client.close()

    def _log_excerpt(self, name: str) -> str:
        return f"the end of the log of {name}:\n{self.server(name).log_tail()}\nThe logs are in {self.data_dir}"

    def _absent_from(self, client: ClusterClient) -> list[str]:
        try:
            brokers = client.wait(lambda: client.nameservers.cluster(_ANSWER_S))
            known = {address for broker in brokers for address in broker.addresses.values()}
        except (TransportError, SystemBusy):  # busy: it has just started
            known = set()
        return [
            broker.name
            for broker in self.brokers
            if broker.running and not broker.paused and broker.address not in known
        ]

    def _wait_in_sync(self) -> None:
        if not self._has_slaves:
            return
        deadline = time.monotonic() + _REGISTERED_S
        for broker in self.brokers:
            while broker.running and not broker.paused and not broker.in_sync:
                if time.monotonic() >= deadline:
                    raise DeadlineExceeded(
                        f"{broker.name} is not in sync after {_REGISTERED_S} s; {self._log_excerpt(broker.name)}"
                    )
                time.sleep(_LOOK_AGAIN_S)


def _launch_all(servers: Sequence[ServerProcess]) -> None:
    for server in servers:
        server.launch()
    for server in servers:
        for tries_left in reversed(range(_START_TRIES)):
            try:
                server.wait_ready()
                break
            except CannotListen:
                # Another process took the port between the choice and the start.
                if not tries_left or not server.move():
                    raise
                server.launch()
