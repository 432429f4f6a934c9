"""The options of the name server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from minimq_common.names import check_address, check_named
from minimq_common.replicas.replica_set import MAX_LEASE_S
from minimq_common.security.server_secrets import check_secrets
from minimq_common.serving.daemon import LogLevel
from minimq_common.serving.logs import LogFormat
from minimq_common.serving.options import check_limits, option


@dataclass(frozen=True, slots=True)
class NameServerOptions:
    """The options of a name server.

    Raises:
        InvalidArgument: a value breaks a rule that the text names.
    """

    listen: str = option(
        "127.0.0.1:9876",
        "Address to serve at; port 0 takes a free one. Set it to serve other machines.",
        metavar="HOST:PORT",
        section="Brokers",
    )
    expire_after_s: float = option(
        120.0, "Silence after which a connected broker is removed. Lower it to leave hung brokers sooner.", minimum=0.05
    )
    start_grace_s: float = option(
        3.0,
        "Time after a start for brokers to register; until then unknown topics are retried. Set 0 in tests.",
        minimum=0,
    )
    remember_offline_s: float = option(
        7 * 86_400.0,
        "Time for which an offline broker is remembered, so that keys keep their queues. Set 0 if it never returns.",
        minimum=0,
    )
    controller_dir: Path | None = option(
        None,
        "Directory for the decisions of a controller. Set it if brokers have replicas and name this server.",
        metavar="DIR",
        section="Controller",
    )
    term_lease_s: float = option(
        3.0,
        "Silence after which a master is replaced. Raise it if machines pause for longer.",
        minimum=0.1,
        maximum=MAX_LEASE_S,
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
    log_level: LogLevel = option(
        "info",
        "Least level to log: debug, info, warning or error. Lower it to find a fault.",
        metavar="LEVEL",
        section="Logs and metrics",
    )
    log_format: LogFormat = option("text", "text or json. Set json for a log collector.", metavar="FORMAT")
    metrics: str = option(
        "", "Address that serves metrics for Prometheus. Set it to monitor the server.", metavar="HOST:PORT"
    )

    def __post_init__(self) -> None:
        check_named("--listen", check_address, self.listen)
        if self.metrics:
            check_named("--metrics", check_address, self.metrics)
        check_limits(self)
        check_secrets(self.secrets, self.client_certificates)
