"""The replicas of one broker as processes, each at its own node of a private network if there is one."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from network import Network

from minimq.admin.descriptions import ReplicationReport
from minimq.local.server_process import BrokerProcess, ServerProcess, flags_from

BROKER = "broker-a"
#: Name and node of the name server, which is the controller by default.
CONTROLLER = "controller"
TIMEOUT_S = 60.0
_PORT = 10911
_LOOK_AGAIN_S = 0.01
#: The disk of this machine may be nearly full of other files, which must not affect a test.
_SHARED_DISK = ("--disk-delete-early=1", "--disk-reject=1")

T = TypeVar("T")
Report = tuple[BrokerProcess, ReplicationReport]


class Controller(ServerProcess):
    """The name server, which is the controller by default; at its node if there is a network."""

    def __init__(self, folder: Path, lease_s: float, network: Network | None) -> None:
        def flags(address: str, first: bool) -> list[str]:
            own = [f"--listen={address}", f"--controller-dir={folder / CONTROLLER}", f"--term-lease={lease_s}"]
            return [*own, "--start-grace=0"] if first else own

        super().__init__("nameserver", CONTROLLER, folder, flags=flags, settled=lambda: None)
        self._network = network
        if network is not None:
            self.address = f"{network.addresses[CONTROLLER]}:{_PORT}"

    def launch(self) -> None:
        with self._network.inside(CONTROLLER) if self._network else contextlib.nullcontext():
            super().launch()


class Replica(BrokerProcess):
    """One replica, at its node if there is a network."""

    def __init__(
        self, folder: Path, replica_id: int, network: Network | None, flags: Callable[[str, bool], list[str]]
    ) -> None:
        super().__init__(
            node(replica_id), folder, broker_name=BROKER, broker_id=replica_id, flags=flags, settled=lambda: None
        )
        self._network = network
        if network is not None:
            self.address = f"{network.addresses[self.name]}:{_PORT}"

    def launch(self) -> None:
        with self._network.inside(self.name) if self._network else contextlib.nullcontext():
            super().launch()


def node(replica_id: int) -> str:
    return f"replica-{replica_id}"


def network_for(count: int) -> Network:
    """Return a network for `count` replicas and a controller. Raises `NoNamespaces`."""
    return Network(CONTROLLER, *map(node, range(count)))


class ReplicaCluster:
    """A name server and the replicas of one broker. A context manager.

    Args:
        folder: folder for data and logs.
        count: number of replicas.
        options: options of all replicas.
        network: the network of the servers; None for the loopback interface.
        controller: address of the controller; the name server by default.
        lease_s: lease of masters in seconds.
    """

    def __init__(
        self,
        folder: Path,
        count: int,
        options: Mapping[str, object],
        *,
        network: Network | None = None,
        controller: str = "",
        lease_s: float = 3.0,
    ) -> None:
        self.network = network
        self.lease_s = lease_s
        self.controller = Controller(folder, lease_s, network)
        decides = controller or self.controller.address
        given = [*_SHARED_DISK, *flags_from(options, frozenset()), f"--controller={decides}"]
        if controller.startswith("etcd://"):
            given.append(f"--term-lease={lease_s}")

        def new(replica_id: int) -> Replica:
            def flags(address: str, _first: bool) -> list[str]:
                own = [f"--name={BROKER}", f"--id={replica_id}", f"--data-dir={folder / node(replica_id)}"]
                where = [f"--listen={address}", f"--nameserver={self.controller.address}"]
                # After the given options, which must not override which replica founds the set.
                return [*own, *where, *given, *(["--role=slave"] if replica_id else [])]

            return Replica(folder, replica_id, network, flags)

        self.replicas = [new(replica_id) for replica_id in range(count)]

    def __enter__(self) -> Self:
        try:
            for server in (self.controller, *self.replicas):
                server.start()
            self.wait_in_sync()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Stop all servers. Idempotent."""
        for server in (*self.replicas, self.controller):
            server.close()
            server.ask_to_stop()
        for server in (*self.replicas, self.controller):
            server.wait_stopped()

    @property
    def nameserver(self) -> str:
        return self.controller.address

    # ---- state ----------------------------------------------------------------------------------

    def leading(self) -> Report | None:
        """Return the master of the latest known term and its report; None if there is none."""
        found = [(replica, report) for replica in self.replicas if (report := replica.replication()) is not None]
        leading = [(replica, report) for replica, report in found if report.role == "master" and report.lease_s]
        return max(leading, key=lambda pair: pair[1].term, default=None)

    def master(self) -> BrokerProcess:
        """Wait until there is a master, and return it."""
        return self._wait(self.leading, "a master")[0]

    def other_master(self, than: BrokerProcess, max_wait_s: float) -> bool:
        """Wait for another master than `than`; return False after `max_wait_s`."""
        deadline = time.monotonic() + max_wait_s
        others = [replica for replica in self.replicas if replica is not than]
        while time.monotonic() < deadline:
            if any(replica.current_role == "master" for replica in others):
                return True
            time.sleep(_LOOK_AGAIN_S)
        return False

    def wait_in_sync(self) -> None:
        def is_so() -> bool:
            found = self.leading()
            return found is not None and len(found[1].in_sync) == len(self.replicas)

        self._wait(is_so, "all replicas in sync")

    def wait_caught_up(self) -> None:
        """Wait until all replicas have the master's whole log, and it is confirmed."""

        def is_so() -> bool:
            found = self.leading()
            behind = [replica.behind_bytes for replica in found[1].replicas if replica.connected] if found else []
            return len(behind) == len(self.replicas) - 1 and not any(behind)

        self._wait(is_so, "all replicas have everything")

    def stop_in_order(self) -> None:
        """Stop the slaves, then the master, so that there is no election."""
        master = self.master()
        for replica in sorted(self.replicas, key=lambda replica: replica is master):
            replica.stop()

    def differences(self) -> list[str]:
        """Verify the data of each stopped replica, and compare it with that of the first one, byte by byte.

        Returns the findings of `minimq-broker check --compare`.
        """
        found: list[str] = []
        first, *others = (str(replica.data_dir) for replica in self.replicas)
        for other in others:
            command = [sys.executable, "-m", "minimq_broker", "check", first, "--compare", other]
            for part in (command, [*command[:4], other]):
                done = subprocess.run(part, capture_output=True, text=True, check=False)
                if done.returncode:
                    found += (done.stdout + done.stderr).splitlines()
        return found

    def _wait(self, look: Callable[[], T | None], what: str) -> T:
        deadline = time.monotonic() + TIMEOUT_S
        while not (found := look()):
            if time.monotonic() > deadline:
                raise SystemExit(f"not within {TIMEOUT_S:g} s: {what}")
            time.sleep(_LOOK_AGAIN_S)
        return found
