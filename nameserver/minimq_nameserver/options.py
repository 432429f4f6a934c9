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

    listen: str = option("127.0.0.1:9876", "Address to listen on. Port 0 chooses a free port.", metavar="HOST:PORT")
    expire_after_s: float = option(
        120.0,
        "Silence after which a broker is removed although its connection is open. A broker whose connection ends "
        "is removed at once.",
        minimum=0.05,
    )
    scan_every_s: float = option(5.0, "Time between two searches for silent brokers.", minimum=0.01)
    start_grace_s: float = option(
        3.0,
        "Time after a start in which running brokers register again. Meanwhile, look-ups of unknown topics get "
        "'busy, try again' instead of 'no such topic', and watchers get no news. 0 turns it off.",
        minimum=0,
    )
    remember_offline_s: float = option(
        7 * 86_400.0,
        "Time for which a departed broker is remembered: until then each key keeps its queue, and tools and Spark name "
        "the missing queues. `minimq cluster delete-broker` ends it; 0 remembers none. A restart forgets all of them.",
        minimum=0,
    )
    remember_offline_brokers: int = option(100, "Maximum number of departed brokers to remember.", minimum=1)
    controller_dir: Path | None = option(
        None,
        "Also act as the controller of replicated brokers, and keep its decisions in this directory. Give the "
        "address of this one name server to the brokers as --controller. Off by default.",
        metavar="DIR",
    )
    term_lease_s: float = option(
        3.0,
        "Silence after which a master stops serving; the controller replaces it after a tenth more. A new value "
        "applies to masters elected from now on.",
        minimum=0.1,
        maximum=MAX_LEASE_S,
    )
    log_level: LogLevel = option("info", "Least severe level that is logged to stderr.")
    log_format: LogFormat = option("text", "Format of the log: lines of text, or a JSON object on each line.")
    metrics: str = option(
        "", "Address that serves metrics in the format of Prometheus; none by default.", metavar="HOST:PORT"
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
    reflection: bool = option(False, "Let tools such as grpcurl list the calls of this server.")

    def __post_init__(self) -> None:
        check_named("--listen", check_address, self.listen)
        if self.metrics:
            check_named("--metrics", check_address, self.metrics)
        check_limits(self)
        check_secrets(self.secrets, self.client_certificates)
