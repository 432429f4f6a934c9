"""The options of the name server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from minimq_common.daemon import LogLevel
from minimq_common.log_format import LogFormat
from minimq_common.names import check_address
from minimq_common.options import check_limits, option
from minimq_common.replica_bounds import MAX_LEASE_S


@dataclass(frozen=True, slots=True)
class NameServerOptions:
    """The options of a name server.

    Raises:
        InvalidArgument: a value breaks a rule that the text names.
    """

    listen: str = option("127.0.0.1:9876", "Address to serve at; with port 0 a free one is taken.", metavar="HOST:PORT")
    expire_after_s: float = option(
        120.0,
        "Silence after which a broker is removed whose connection has not ended; one that ends removes it at once.",
        minimum=0.05,
    )
    scan_every_s: float = option(5.0, "Time between two looks for silent brokers.", minimum=0.01)
    start_grace_s: float = option(
        3.0,
        "After a start, time for running brokers to come back: a topic that is not known yet is answered with "
        "'busy, try again' instead of 'no such topic', and watchers are told nothing. 0 turns it off.",
        minimum=0,
    )
    remember_away_s: float = option(
        86_400.0,
        "Time for which a broker that has gone is remembered, so that tools and Spark say which queues are missing "
        "(`minimq cluster forget` ends it); 0 remembers none. A restart forgets all of them.",
        minimum=0,
    )
    remember_away_brokers: int = option(100, "Maximum number of departed brokers to remember.", minimum=1)
    controller_dir: Path | None = option(
        None,
        "Be the controller of replicated brokers, too, and keep in this directory which of them are masters; name the "
        "address of one name server alone with --controller of the brokers. Off unless it is given.",
        metavar="DIR",
    )
    term_lease_s: float = option(
        3.0,
        "Silence after which the controller replaces the master of a broker (a tenth more, in fact); the master serves "
        "nobody from then on. It holds for masters that are elected from now on.",
        minimum=0.1,
        maximum=MAX_LEASE_S,
    )
    log_level: LogLevel = option("info", "Least severe messages that are logged to stderr.")
    log_format: LogFormat = option(
        "text", "What a log record looks like: a line of text, or a JSON object on a line of its own."
    )
    metrics: str = option(
        "", "Address at which metrics are shown in the format of Prometheus; none by default.", metavar="HOST:PORT"
    )
    reflection: bool = option(True, "Let tools such as grpcurl ask which calls there are.")

    def __post_init__(self) -> None:
        check_address(self.listen)
        if self.metrics:
            check_address(self.metrics)
        check_limits(self)
