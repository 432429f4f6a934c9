"""The options of the broker."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from minimq_common.errors import InvalidArgument
from minimq_common.names import check_address, check_broker, check_cluster, check_named
from minimq_common.replicas.replica_set import MAX_LEASE_S, MAX_REPLICA_ID, MAX_REPLICAS
from minimq_common.security.server_secrets import check_secrets
from minimq_common.serving.daemon import LogLevel
from minimq_common.serving.logs import LogFormat
from minimq_common.serving.options import check_limits, option
from minimq_common.wire.protocol_bounds import MAX_TOPICS

_TERM_LEASE_S = 3.0
_ETCD, _ETCD_WITH_TLS = "etcd://", "etcds://"
#: Prefixes of a controller in etcd.
ETCD = (_ETCD, _ETCD_WITH_TLS)


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """The options of a broker.

    Raises:
        InvalidArgument: a value breaks a rule that the text names.
    """

    name: str = option("broker-a", "Name of the broker; master and slaves share it.")
    broker_id: int = option(
        0,
        "Number of this replica. It never changes, and no two brokers of one name share it.",
        flag="--id",
        minimum=0,
        maximum=MAX_REPLICA_ID,
    )
    role: Literal["async-master", "sync-master", "slave"] = option(
        "async-master",
        "Role of this broker. An async-master acknowledges a message once it has stored it itself, a sync-master "
        "once all replicas in sync have. A slave is never the first master of its name; if it is elected later, "
        "it keeps the mode of its predecessor.",
    )
    controller: str = option(
        "",
        "Controller that elects the master: a name server started with --controller-dir, or etcd. Without a "
        "controller a broker has no slaves.",
        metavar="HOST:PORT or etcd://HOST:PORT[,...]",
    )
    min_in_sync: int = option(
        2,
        "Number of replicas, including the master, that must be in sync before a sync-master accepts messages.",
        minimum=1,
        maximum=MAX_REPLICAS,
    )
    replica_lag_s: float = option(
        5.0, "Time in which a slave must catch up with its master to stay in sync.", minimum=0.1
    )
    replication_timeout_s: float = option(
        5.0, "Time that a message waits for the replicas in sync before its sender gets an error.", minimum=0.1
    )
    term_lease_s: float = option(
        _TERM_LEASE_S,
        "With etcd: silence after which a master is replaced. A name server that is the controller has its own option.",
        minimum=0.5,
        maximum=MAX_LEASE_S,
    )
    cluster: str = option("default", "Name of the cluster.")
    listen: str = option("127.0.0.1:10911", "Address to listen on. Port 0 chooses a free port.", metavar="HOST:PORT")
    advertise: str = option(
        "", "Address that clients use to reach this broker; by default the address of --listen.", metavar="HOST:PORT"
    )
    nameservers: tuple[str, ...] = option(
        ("127.0.0.1:9876",), "Name servers to register with.", flag="--nameserver", metavar="HOST:PORT[,HOST:PORT]"
    )
    data_dir: Path = option(Path("minimq-data"), "Directory that holds all data of this broker.", metavar="DIR")
    segment_bytes: int = option(
        1 << 30, "Size at which the CommitLog begins a new file, at most 64 GiB.", minimum=1 << 16, maximum=1 << 36
    )
    checkpoint_interval_s: float = option(
        5.0,
        "Time between two checkpoints. After a crash, the broker reads again what it wrote since the last one.",
        minimum=0.01,
    )
    retention_s: float = option(
        72 * 3600.0,
        "Time for which messages are shown; 0 keeps them forever. A file of the CommitLog is deleted once its "
        "last message is that old.",
        minimum=0,
    )
    retention_bytes: int = option(
        0, "Disk space that the CommitLog may use before its oldest files are deleted; 0 sets no limit.", minimum=0
    )
    rewrite_after_s: float = option(
        3600.0,
        "Age at which a file of the CommitLog may be rewritten if much of it is no longer needed, such as messages of "
        "a topic with a shorter retention. A slave that was offline for longer copies everything.",
        minimum=0,
    )
    dead_letter_retention_s: float = option(
        0.0,
        "Time for which dead letters are kept, unless their topic has a retention of its own; 0 keeps them forever.",
        minimum=0,
    )
    dead_letter_bytes: int = option(
        0,
        "Disk space that the dead letters of each group may use before its oldest are deleted; 0 sets no limit.",
        minimum=0,
    )
    retention_check_s: float = option(10.0, "Time between two searches for expired messages.", minimum=0.01)
    compaction_check_s: float = option(10.0, "Time between two checks for topics to compact.", minimum=0.01)
    compaction_memory_bytes: int = option(
        128 << 20,
        "Memory for the keys of a round of compaction; with less of it, more rounds are needed.",
        minimum=1 << 20,
    )
    compaction_share: float = option(
        0.2, "Share of the time of one processor that compaction uses.", minimum=0.01, maximum=1
    )
    verify_interval_s: float = option(
        86400.0, "Pause between two background checks of all old segments; 0 turns them off.", minimum=0
    )
    max_clock_jump_s: float = option(
        24 * 3600.0,
        "Time by which the clock may jump ahead. After a larger jump nothing is deleted because of it (messages, "
        "dead letters, groups, staged batches) until the clock returns or has stayed ahead for 24 hours, or the broker "
        "is restarted with 0, which trusts the clock. A clean stop of any length is not a jump.",
        minimum=0,
    )
    disk_warn: float = option(
        0.75,
        "Used share of the disk at which the broker logs warnings; 1 means never, here and in the next two options.",
        minimum=0.05,
        maximum=1,
    )
    disk_delete_early: float = option(
        0.85,
        "Used share of the disk at which the oldest files are deleted before they expire.",
        minimum=0.05,
        maximum=1,
    )
    disk_reject: float = option(0.90, "Used share of the disk at which messages are rejected.", minimum=0.05, maximum=1)
    max_body_bytes: int = option(4 << 20, "Largest message body.", minimum=1, maximum=32 << 20)
    max_pending_bytes: int = option(
        64 << 20, "Bytes of batches that may wait for the disk; beyond that, senders are slowed down.", minimum=1 << 20
    )
    max_unsent_bytes: int = option(
        96 << 20,
        "Bytes of answers, in all, that may wait until clients read them. Beyond that, large answers are delayed "
        "by some seconds, small ones are not, and answers that are not read by then stop counting. The answers take "
        "twice as much memory.",
        minimum=1 << 20,
    )
    max_streams: int = option(
        4096,
        "Number of streams of one kind, such as those of producers, that may be open at once; more are rejected.",
        minimum=1,
    )
    max_connections: int = option(
        10_000,
        "Number of connections that may be open at once; more are closed. Each is an open file: the server raises "
        "its limit of open files to the hard limit of the system (ulimit -Hn), and accepts fewer if that is too low.",
        minimum=1,
    )
    busy_after_s: float = option(
        0.5,
        "Time that a batch waits for room among the pending bytes before its sender gets 'busy, try again'.",
        minimum=0,
    )
    auto_create_queues: int = option(
        0,
        "Number of queues of a topic that this broker creates when a producer sends to a topic that does not "
        "exist; 0 creates none. Topics whose names begin with % are never created this way.",
        minimum=0,
        maximum=1024,
    )
    max_topics: int = option(
        MAX_TOPICS,
        "Maximum number of topics on this broker, including the retry and dead-letter topics of groups.",
        minimum=1,
        maximum=MAX_TOPICS,
    )
    max_groups: int = option(
        10_000,
        "Maximum number of consumer groups on this broker. Unused groups are deleted after --group-expiry.",
        minimum=1,
        maximum=1_000_000,
    )
    max_sessions: int = option(
        10_000, "Maximum number of connected members of consumer groups.", minimum=1, maximum=1_000_000
    )
    transaction_expiry_s: float = option(
        24 * 3600.0,
        "Time after which a transaction that was neither committed nor aborted expires; it cannot be committed later.",
        minimum=0.1,
    )
    transaction_idle_s: float = option(
        900.0,
        "Shortest time after which a transaction that stages nothing more expires early, to make room for others. "
        "The time falls from --transaction-expiry to this value while the room fills from 50 % to 90 %.",
        minimum=0.1,
    )
    check_back_after_s: float = option(
        6.0,
        "Time after which a producer is asked for the first time how a transaction with half messages ends.",
        minimum=0.05,
    )
    check_back_interval_s: float = option(30.0, "Time between one such question and the next.", minimum=0.05)
    max_check_backs: int = option(
        15,
        "Number of such questions about one transaction. After that it waits for a decision by hand.",
        minimum=1,
        maximum=10_000,
    )
    half_message_expiry_s: float = option(
        7 * 24 * 3600.0,
        "Time after which an undecided transaction with half messages expires. Until then the files with its messages "
        "are kept.",
        minimum=0.1,
    )
    max_staged_bytes: int = option(
        0,
        "Bytes that may be staged for undecided transactions; 0 stands for half of the disk. One transaction name "
        "may use as much as it leaves free for others.",
        minimum=0,
    )
    max_delay_s: float = option(
        366 * 24 * 3600.0, "Longest delay of a message; one that is to be delivered later is rejected.", minimum=0
    )
    group_expiry_s: float = option(
        7 * 24 * 3600.0,
        "Time after which an unused consumer group, without members and commits, is deleted; 0 means never. The "
        "log warns a day ahead, or a tenth of the time if that is less.",
        minimum=0,
    )
    session_grace_s: float = option(
        3.0,
        "Time in which a consumer whose connection broke may come back before others get its queues. For as long "
        "after a start of the broker, only former owners get queues.",
        minimum=0,
    )
    session_timeout_s: float = option(60.0, "Silence after which a consumer counts as dead.", minimum=0.1)
    log_level: LogLevel = option("info", "Least severe level that is logged to stderr.")
    log_format: LogFormat = option("text", "Format of the log: lines of text, or a JSON object on each line.")
    metrics: str = option(
        "", "Address that serves metrics in the format of Prometheus; none by default.", metavar="HOST:PORT"
    )
    metrics_series: int = option(
        1000,
        "Number of topics, and of pairs of a group and a topic, that have metrics of their own; the others are "
        "summed up.",
        minimum=0,
    )
    secrets: Path | None = option(
        None,
        "Directory with tls.crt, tls.key and ca.crt, as `minimq secure init` writes them: all connections then use "
        "TLS, and with its cluster.key and access.toml every caller needs a key. Changed files apply within 2 seconds.",
        metavar="DIR",
    )
    client_certificates: Literal["off", "required"] = option(
        "off",
        "With --secrets, whether clients and servers need a certificate of a CA in ca.crt (required) or not (off).",
    )
    etcd_ca: Path | None = option(
        None, "File with the CAs of etcd, in PEM; needed for --controller etcds://...", flag="--etcd-ca", metavar="FILE"
    )
    etcd_certificate: Path | None = option(
        None, "File with the client certificate for etcd, in PEM.", flag="--etcd-cert", metavar="FILE"
    )
    etcd_key: Path | None = option(None, "File with the private key of this certificate.", metavar="FILE")
    reflection: bool = option(False, "Let tools such as grpcurl list the calls of this server.")

    def __post_init__(self) -> None:
        check_named("--name", check_broker, self.name)
        check_named("--cluster", check_cluster, self.cluster)
        addresses = [("--listen", self.listen), ("--advertise", self.advertise), ("--metrics", self.metrics)]
        for flag, address in (*addresses, *(("--nameserver", each) for each in self.nameservers)):
            if address or flag == "--listen":
                check_named(flag, check_address, address)
        check_limits(self)
        check_secrets(self.secrets, self.client_certificates)
        marks = [mark for mark in (self.disk_warn, self.disk_delete_early, self.disk_reject) if mark < 1]
        if marks != sorted(marks):
            raise InvalidArgument(
                f"--disk-warn {self.disk_warn}, --disk-delete-early {self.disk_delete_early} and --disk-reject "
                f"{self.disk_reject} have to come in this order, the smallest first; 1 turns one off"
            )
        self._check_replication()
        if not self.advertise and self.listen.rpartition(":")[0] in ("0.0.0.0", "[::]"):
            raise InvalidArgument(
                f"--listen {self.listen} serves at every address of this machine, which clients cannot call: "
                "give the address that they shall use with --advertise HOST:PORT"
            )

    @property
    def _decides_with_etcd(self) -> bool:
        return self.controller.startswith(ETCD)

    def _check_etcd_files(self) -> None:
        if self.controller.startswith(_ETCD_WITH_TLS):
            if self.etcd_ca is None:
                raise InvalidArgument("--controller is etcds://...: give --etcd-ca FILE, by which etcd is verified")
            if (self.etcd_certificate is None) != (self.etcd_key is None):
                raise InvalidArgument("--etcd-cert and --etcd-key go together: give both or none")
        elif self.etcd_ca or self.etcd_certificate or self.etcd_key:
            raise InvalidArgument(
                "--etcd-ca, --etcd-cert and --etcd-key are about etcd with TLS: write --controller etcds://..."
            )

    def _check_replication(self) -> None:
        if self.controller:
            controller_addresses(self.controller)
        self._check_etcd_files()
        if self.term_lease_s != _TERM_LEASE_S and not self._decides_with_etcd:
            raise InvalidArgument(
                f"--term-lease is {self.term_lease_s:g}: a broker decides on it only with --controller etcd://..., "
                "a name server that is the controller has a --term-lease of its own"
            )
        if self.controller:
            return
        remedy = "give --controller HOST:PORT of a name server that was started with --controller-dir DIR"
        if self.broker_id:
            raise InvalidArgument(
                f"--id is {self.broker_id}: replicas need a controller that elects the master: {remedy}"
            )
        if self.role == "slave":
            raise InvalidArgument(f"--role is slave: a slave needs a controller that names its master: {remedy}")
        if self.role == "sync-master" and self.min_in_sync > 1:
            raise InvalidArgument(
                f"--role is sync-master with --min-in-sync {self.min_in_sync}: alone it would accept nothing: {remedy}"
            )

    @property
    def max_batch_bytes(self) -> int:
        """Maximum bytes of a batch: one body of the largest size, or many small messages with keys and properties."""
        return max(self.max_body_bytes, 4 << 20) + (4 << 20)


def controller_addresses(text: str) -> list[str]:
    """Return the addresses that the option `--controller` names. Raises `InvalidArgument`."""
    is_etcd = text.startswith(ETCD)
    if "@" in text:
        raise InvalidArgument(
            "--controller has a user or a password, which minimq does not support for etcd: write etcds://HOST:PORT, "
            "and authenticate by a client certificate, with --etcd-cert and --etcd-key"
        )
    parts = text.removeprefix(_ETCD).removeprefix(_ETCD_WITH_TLS).rstrip("/").split(",") if is_etcd else [text]
    try:
        if is_etcd or "," not in text:
            return [check_address(part.strip()) for part in parts]
    except InvalidArgument:
        pass
    raise InvalidArgument(
        f"--controller is {text!r}: write HOST:PORT of a name server that was started with --controller-dir, or "
        "etcd://HOST:PORT[,HOST:PORT], or etcds:// for etcd with TLS"
    )
