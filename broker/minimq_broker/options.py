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

_TERM_LEASE_S = 3.0
_ETCD, _ETCD_WITH_TLS = "etcd://", "etcds://"
#: Prefixes of a controller in etcd.
ETCD = (_ETCD, _ETCD_WITH_TLS)


@dataclass(frozen=True)
class KernelOptions:
    """The options of a broker besides those of its features; `assembly.BrokerOptions` has all.

    Raises:
        InvalidArgument: a value breaks a rule that the text names.
    """

    name: str = option(
        "broker-a",
        "Name of the broker; its replicas share it. Set it once there are two brokers.",
        metavar="NAME",
        section="Place in the cluster",
    )
    broker_id: int = option(
        0,
        "Number of this replica, which never changes. Set it if the broker has replicas.",
        flag="--id",
        metavar="N",
        minimum=0,
        maximum=MAX_REPLICA_ID,
    )
    cluster: str = option("default", "Name of the cluster. Set it if clusters share name servers.", metavar="NAME")
    listen: str = option(
        "127.0.0.1:10911",
        "Address to serve at; port 0 takes a free one. Set it to serve other machines.",
        metavar="HOST:PORT",
    )
    advertise: str = option(
        "",
        "Address for clients, by default that of --listen. Set it in containers and behind NAT.",
        metavar="HOST:PORT",
    )
    nameservers: tuple[str, ...] = option(
        ("127.0.0.1:9876",),
        "Name servers to register with, divided by commas. Set it if they run elsewhere.",
        flag="--nameserver",
        metavar="HOST:PORT",
    )
    data_dir: Path = option(
        Path("minimq-data"), "Directory for all data. Set it to a disk with enough space.", metavar="DIR"
    )
    role: Literal["async-master", "sync-master", "slave"] = option(
        "async-master",
        "async-master, sync-master (waits for its replicas) or slave. Set it with --controller.",
        metavar="ROLE",
        section="Replication",
    )
    controller: str = option(
        "",
        "Elects the master: HOST:PORT of a name server, or etcd://HOST:PORT,... Set it to have replicas.",
        metavar="ADDRESS",
    )
    min_in_sync: int = option(
        2,
        "Replicas in sync, with itself, for a sync-master to accept messages. Raise it for more copies.",
        metavar="N",
        minimum=1,
        maximum=MAX_REPLICAS,
    )
    replica_lag_s: float = option(
        5.0, "Time in which a slave must catch up to stay in sync. Raise it for slow links.", minimum=0.1
    )
    term_lease_s: float = option(
        _TERM_LEASE_S,
        "With etcd: silence after which a master is replaced. Raise it if machines pause for longer.",
        minimum=0.5,
        maximum=MAX_LEASE_S,
    )
    etcd_secrets: Path | None = option(
        None,
        "Directory with ca.crt, and tls.crt and tls.key if etcd wants a certificate. Set it for etcds://.",
        metavar="DIR",
    )
    secrets: Path | None = option(
        None,
        "Directory that `minimq secure init` wrote: TLS, and keys for all callers. Set it on open networks.",
        metavar="DIR",
        section="Security",
    )
    client_certificates: Literal["off", "required"] = option(
        "off",
        "off or required: TLS clients need a certificate of a CA in ca.crt. Set it if keys alone do not suffice.",
        metavar="MODE",
    )
    disk_delete_early: float = option(
        0.85,
        "Used share of the disk at which the oldest files are deleted early. Set 1 to keep them.",
        metavar="SHARE",
        minimum=0.05,
        maximum=1,
        section="Storage",
    )
    disk_reject: float = option(
        0.90,
        "Used share of the disk at which messages are rejected. Set 1 if other programs fill the disk.",
        metavar="SHARE",
        minimum=0.05,
        maximum=1,
    )
    segment_bytes: int = option(
        1 << 30,
        "Size of a file of the log; files are deleted as a whole. Lower it for a small disk.",
        minimum=1 << 16,
        maximum=1 << 36,
    )
    upkeep_interval_s: float = option(
        5.0, "Time between checkpoints, and rounds of retention and compaction. Raise it to write less.", minimum=0.01
    )
    verify_interval_s: float = option(
        86400.0, "Pause between checks of all old files; 0 means none. Raise it if reads cost money.", minimum=0
    )
    auto_create_queues: int = option(
        0,
        "Queues of a topic that a first send creates; 0 creates none. Set it for development.",
        metavar="N",
        minimum=0,
        maximum=1024,
        section="Messages and groups",
    )
    max_body_bytes: int = option(
        4 << 20, "Largest message body, up to 32MiB. Raise it for larger messages.", minimum=1, maximum=32 << 20
    )
    group_expiry_s: float = option(
        7 * 24 * 3600.0,
        "Age at which an unused consumer group is deleted; 0 means never. Raise it for rare jobs.",
        minimum=0,
    )
    session_grace_s: float = option(
        3.0, "Time for which a disconnected consumer keeps its queues. Raise it if restarts take longer.", minimum=0
    )
    session_timeout_s: float = option(
        60.0,
        "Silence after which a consumer counts as dead. Raise it if consumers pause for minutes; never below 30 s, for "
        "which members trust leases.",
        minimum=0.1,
    )
    log_level: LogLevel = option(
        "info",
        "Least level to log: debug, info, warning or error. Lower it to find a fault.",
        metavar="LEVEL",
        section="Logs and metrics",
    )
    log_format: LogFormat = option("text", "text or json. Set json for a log collector.", metavar="FORMAT")
    metrics: str = option(
        "", "Address that serves metrics for Prometheus. Set it to monitor the broker.", metavar="HOST:PORT"
    )

    def __post_init__(self) -> None:
        check_named("--name", check_broker, self.name)
        check_named("--cluster", check_cluster, self.cluster)
        addresses = [("--listen", self.listen), ("--advertise", self.advertise), ("--metrics", self.metrics)]
        for flag, address in (*addresses, *(("--nameserver", each) for each in self.nameservers)):
            if address or flag == "--listen":
                check_named(flag, check_address, address)
        check_limits(self)
        check_secrets(self.secrets, self.client_certificates)
        if self.disk_reject < self.disk_delete_early < 1:
            raise InvalidArgument(
                f"--disk-reject {self.disk_reject} is below --disk-delete-early {self.disk_delete_early}, so nothing "
                "would be deleted early: give the larger one to --disk-reject"
            )
        self._check_replication()
        if not self.advertise and self.listen.rpartition(":")[0] in ("0.0.0.0", "[::]"):
            raise InvalidArgument(
                f"--listen {self.listen} serves at every address of this machine, which clients cannot call: "
                "give the address that they shall use with --advertise HOST:PORT"
            )

    @property
    def max_log_bytes(self) -> int:
        """Bytes that the log may take; 0 for any number."""
        return 0

    def _check_replication(self) -> None:
        if self.controller:
            controller_addresses(self.controller)
        if self.controller.startswith(_ETCD_WITH_TLS) != (self.etcd_secrets is not None):
            raise InvalidArgument("--etcd-secrets and --controller etcds://... go together: give both or none")
        if self.term_lease_s != _TERM_LEASE_S and not self.controller.startswith(ETCD):
            raise InvalidArgument(
                f"--term-lease is {self.term_lease_s:g}: a broker decides on it only with --controller etcd://..., "
                "a name server that is the controller has a --term-lease of its own"
            )
        needs_others = self.role == "slave" or (self.role == "sync-master" and self.min_in_sync > 1)
        if not self.controller and (self.broker_id or needs_others):
            raise InvalidArgument(
                f"--id is {self.broker_id}, --role is {self.role} and --min-in-sync is {self.min_in_sync}: replicas "
                "need a controller that elects the master: give --controller HOST:PORT of a name server that was "
                "started with --controller-dir DIR"
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
            "and authenticate by a client certificate in --etcd-secrets"
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
