"""The options of the broker."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from minimq_common.daemon import LogLevel
from minimq_common.errors import InvalidArgument
from minimq_common.log_format import LogFormat
from minimq_common.names import check_address, check_broker, check_cluster
from minimq_common.options import check_limits, option
from minimq_common.protocol_bounds import MAX_TOPICS
from minimq_common.replica_bounds import MAX_LEASE_S, MAX_REPLICA_ID, MAX_REPLICAS

#: Where Linux says how much memory the control group of this process may use: that of its container.
_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
_TERM_LEASE_S = 3.0
_ETCD = "etcd://"


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """How a broker runs.

    Raises:
        InvalidArgument: a value breaks a rule that the text names.
    """

    name: str = option("broker-a", "Name of the broker; master and slaves share it.")
    broker_id: int = option(
        0,
        "Number of this replica, which never changes; each broker of one name has another.",
        flag="--id",
        minimum=0,
        maximum=MAX_REPLICA_ID,
    )
    role: Literal["async-master", "sync-master", "slave"] = option(
        "async-master",
        "How this broker acts as the master: it acknowledges a message once it has it, or once all replicas in sync "
        "have it. A slave is never the first master of its name; elected later, it acts as the one before.",
    )
    controller: str = option(
        "",
        "Who decides which replica is the master: a name server that was started with --controller-dir, or etcd. "
        "Without it a broker has no slaves.",
        metavar="HOST:PORT or etcd://HOST:PORT[,...]",
    )
    min_in_sync: int = option(
        2,
        "Replicas, the master among them, that have to be in sync for a sync-master to accept messages.",
        minimum=1,
        maximum=MAX_REPLICAS,
    )
    replica_lag_s: float = option(
        5.0, "Time in which a slave has to catch up with its master; later it is not in sync any more.", minimum=0.1
    )
    replication_timeout_s: float = option(
        5.0, "Time for which a message waits for the replicas in sync; then its sender is told.", minimum=0.1
    )
    slave_read_lag_bytes: int = option(
        0,
        "How far a reader may be behind the end of the CommitLog before its master sends it to a slave in sync, "
        "0: 40 % of the memory of the machine, or of what its control group may use.",
        flag="--slave-read-lag",
        minimum=0,
    )
    term_lease_s: float = option(
        _TERM_LEASE_S,
        "With etcd, time after which a master that is not heard of is replaced; a name server has an option of its "
        "own for it.",
        minimum=0.5,
        maximum=MAX_LEASE_S,
    )
    cluster: str = option("default", "Name of the cluster.")
    listen: str = option(
        "127.0.0.1:10911", "Address to serve at; with port 0 a free one is taken.", metavar="HOST:PORT"
    )
    advertise: str = option(
        "", "Address that clients are told to use; the one served at unless it is given.", metavar="HOST:PORT"
    )
    nameservers: tuple[str, ...] = option(
        ("127.0.0.1:9876",), "Name servers to register with.", flag="--nameserver", metavar="HOST:PORT[,HOST:PORT]"
    )
    data_dir: Path = option(Path("minimq-data"), "Directory that holds all data of this broker.", metavar="DIR")
    flush: Literal["sync", "async"] = option(
        "sync",
        "Acknowledge a message after it is on disk, or before: then a crash loses what was acknowledged in the last "
        "moments.",
    )
    segment_bytes: int = option(
        1 << 30, "Size at which a file of the CommitLog is sealed, at most 64 GiB.", minimum=1 << 16, maximum=1 << 36
    )
    checkpoint_interval_s: float = option(
        5.0, "Time between two saves of the state; a start after a crash re-reads what came later.", minimum=0.01
    )
    retention_s: float = option(
        72 * 3600.0,
        "Time for which messages are kept, 0: for ever. Files of the CommitLog are deleted as a whole, once the last "
        "message in them is that old.",
        minimum=0,
    )
    retention_bytes: int = option(
        0, "Disk that the CommitLog may use before its oldest files are deleted, 0: without a limit.", minimum=0
    )
    dead_letter_retention_s: float = option(
        0.0,
        "How long dead letters are kept after their segment is deleted, 0: for ever.",
        minimum=0,
    )
    dead_letter_bytes: int = option(
        1 << 30,
        "Disk that dead letters of deleted segments may use before the oldest of them are deleted, 0: without a limit.",
        minimum=0,
    )
    retention_check_s: float = option(10.0, "Time between two looks for what is to be deleted.", minimum=0.01)
    verify_interval_s: float = option(
        86400.0,
        "Time from the end of a round, in which all old segments are verified in the background, to the next; 0: none.",
        minimum=0,
    )
    clock_hold_s: float = option(
        24 * 3600.0,
        "Time for which nothing is deleted by a clock that has jumped ahead: messages, dead letters, groups, staged "
        "batches. Then it is believed; 0: at once.",
        minimum=0,
    )
    disk_warn: float = option(
        0.75,
        "Used part of the disk from which on the log warns; 1: never, as for the next two.",
        minimum=0.05,
        maximum=1,
    )
    disk_delete_early: float = option(
        0.85,
        "Used part of the disk from which on the oldest files are deleted though they are not expired.",
        minimum=0.05,
        maximum=1,
    )
    disk_refuse: float = option(
        0.90, "Used part of the disk from which on messages are refused.", minimum=0.05, maximum=1
    )
    max_body_bytes: int = option(4 << 20, "Largest message body.", minimum=1, maximum=32 << 20)
    max_pending_bytes: int = option(
        64 << 20, "Batches that may wait for the disk; beyond that, senders are slowed down.", minimum=1 << 20
    )
    max_unsent_bytes: int = option(
        96 << 20,
        "Answers that may wait for clients to read them, in all; beyond that they are made later, large ones by some "
        "seconds, small ones never, and the connection of a client that does not read is ended. They take twice as "
        "much memory.",
        minimum=1 << 20,
    )
    max_incoming_bytes: int = option(
        160 << 20,
        "Requests that may be on their way into the broker, in all; beyond that connections are ended that hold much "
        "of it, or do not send it to its end.",
        minimum=64 << 20,
    )
    max_streams: int = option(
        4096,
        "Streams of one kind, such as those of producers, that may be open at once; more are refused.",
        minimum=1,
    )
    max_connections: int = option(
        10_000,
        "Connections that may be open at once; more are closed. Each is an open file: servers raise their own limit "
        "of these to the hard one of the system (ulimit -Hn).",
        minimum=1,
    )
    busy_after_s: float = option(
        0.5, "Time that a batch may wait for room among these; then its sender is told to come back later.", minimum=0
    )
    auto_create_queues: int = option(
        0,
        "Queues of a topic that does not exist when a producer sends to it, made by itself on this broker; 0: none is "
        "made. Names that begin with % never are.",
        minimum=0,
        maximum=1024,
    )
    max_topics: int = option(
        MAX_TOPICS,
        "Topics that this broker carries, those of groups for retries and dead letters included; no more are created.",
        minimum=1,
        maximum=MAX_TOPICS,
    )
    max_groups: int = option(
        10_000,
        "Consumer groups that this broker knows; no more are begun. Those that nobody uses are deleted after "
        "--group-expiry.",
        minimum=1,
        maximum=1_000_000,
    )
    max_sessions: int = option(
        10_000, "Members of consumer groups that may be connected; no more are served.", minimum=1, maximum=1_000_000
    )
    transaction_expiry_s: float = option(
        24 * 3600.0,
        "Time for which what is staged for a transaction waits for its end; nobody who comes later can commit it.",
        minimum=0.1,
    )
    transaction_idle_s: float = option(
        900.0,
        "Least time after which a transaction for which nothing is staged any more expires early, to make room for "
        "others. It falls from --transaction-expiry to this while the room fills up from 50 % to 90 %.",
        minimum=0.1,
    )
    max_staged_bytes: int = option(
        0,
        "Bytes that may be staged for transactions which are not decided, 0: half of the disk. One transaction name "
        "may have as much as is free for others.",
        minimum=0,
    )
    group_expiry_s: float = option(
        7 * 24 * 3600.0,
        "Time after which a consumer group without members that commits nothing is deleted, 0: never. The log warns a "
        "day ahead, or a tenth of the time if that is less.",
        minimum=0,
    )
    session_grace_s: float = option(
        3.0,
        "Time in which a consumer whose connection broke may come back before its queues go to others; for as long "
        "after a start of the broker, queues go only to those that had them before.",
        minimum=0,
    )
    session_timeout_s: float = option(60.0, "Silence after which a consumer counts as dead.", minimum=0.1)
    log_level: LogLevel = option("info", "Least severe messages that are logged to stderr.")
    log_format: LogFormat = option(
        "text", "What a log record looks like: a line of text, or a JSON object on a line of its own."
    )
    metrics: str = option(
        "", "Address at which metrics are shown in the format of Prometheus; none by default.", metavar="HOST:PORT"
    )
    metrics_series: int = option(
        1000,
        "Topics, and pairs of a group and a topic, that have metrics of their own; those of more are summed up.",
        minimum=0,
    )
    reflection: bool = option(True, "Let tools such as grpcurl ask which calls there are.")

    def __post_init__(self) -> None:
        check_broker(self.name)
        check_cluster(self.cluster)
        check_address(self.listen)
        for address in (*self.nameservers, *filter(None, (self.advertise, self.metrics))):
            check_address(address)
        check_limits(self)
        marks = [mark for mark in (self.disk_warn, self.disk_delete_early, self.disk_refuse) if mark < 1]
        if marks != sorted(marks):
            raise InvalidArgument(
                f"--disk-warn {self.disk_warn}, --disk-delete-early {self.disk_delete_early} and --disk-refuse "
                f"{self.disk_refuse} have to come in this order, the smallest first; 1 turns one off"
            )
        self._check_replication()
        if not self.advertise and self.listen.rpartition(":")[0] in ("0.0.0.0", "[::]"):
            raise InvalidArgument(
                f"--listen {self.listen} serves at every address of this machine, which clients cannot call: "
                "say with --advertise HOST:PORT which one they shall use"
            )

    def _check_controller(self) -> None:
        is_etcd = self.controller.startswith(_ETCD)
        try:
            for part in self.controller.removeprefix(_ETCD).rstrip("/").split(",") if is_etcd else [self.controller]:
                check_address(part.strip())
        except InvalidArgument:
            is_address = False
        else:
            is_address = is_etcd or "," not in self.controller
        if not is_address:
            raise InvalidArgument(
                f"--controller is {self.controller!r}: write HOST:PORT of a name server that was started with "
                "--controller-dir, or etcd://HOST:PORT[,HOST:PORT]"
            )

    def _check_replication(self) -> None:
        if self.term_lease_s != _TERM_LEASE_S and not self.controller.startswith(_ETCD):
            raise InvalidArgument(
                f"--term-lease is {self.term_lease_s:g}: a broker decides on it only with --controller etcd://..., "
                "a name server that is the controller has a --term-lease of its own"
            )
        if self.controller:
            self._check_controller()
            return
        remedy = "give --controller HOST:PORT of a name server that was started with --controller-dir DIR"
        if self.broker_id:
            raise InvalidArgument(
                f"--id is {self.broker_id}: replicas need somebody who decides on the master: {remedy}"
            )
        if self.role == "slave":
            raise InvalidArgument(f"--role is slave: a slave needs somebody who tells it its master: {remedy}")
        if self.role == "sync-master" and self.min_in_sync > 1:
            raise InvalidArgument(
                f"--role is sync-master with --min-in-sync {self.min_in_sync}: alone it would accept nothing: {remedy}"
            )

    @property
    def slave_read_lag(self) -> int:
        """How far a reader may be behind, in bytes: what is older is probably not in the memory of the machine."""
        return self.slave_read_lag_bytes or int(0.4 * _memory_bytes(_MEMORY_LIMIT))

    @property
    def max_batch_bytes(self) -> int:
        """Largest batch: one body of the largest size, or many small messages with long keys and properties."""
        return max(self.max_body_bytes, 4 << 20) + (32 << 20)


def _memory_bytes(limit: Path) -> int:
    """Return the memory of the machine, or the limit in a file if that is less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(machine, int(limit.read_text("ascii")))
    except (OSError, ValueError):  # there are no control groups, or no limit: it says "max"
        return machine
