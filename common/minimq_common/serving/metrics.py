"""Metrics of a server in the format of Prometheus, collected at each scrape, on a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from socketserver import ThreadingMixIn
from typing import Any, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from minimq_common.errors import CannotListen
from minimq_common.retry_log import RetryLog
from minimq_common.security.access_control import AccessControl
from minimq_common.security.server_secrets import ServerSecrets
from minimq_common.serving.histogram import SECONDS, Histogram
from minimq_common.serving.periodic import PeriodicTask

log = logging.getLogger(__name__)

_LAG_INTERVAL_S = 0.5

#: Seconds that a scrape waits for the event loop: if that hangs, the scrape shall still return the other metrics.
_TIMEOUT_S = 2.0

T = TypeVar("T")
Collect = Callable[[], Iterable[Metric]]


class MetricsServer:
    """Answers scrapes over HTTP, one at a time, and measures the lag of the event loop. Never blocks the loop."""

    def __init__(self, collect: Collect, prefix: str) -> None:
        self._collector = _SerializedCollector(collect, self._loop_lag, self._certificate, self._access)
        self._prefix = prefix
        self._secrets: ServerSecrets | None = None
        self._control: AccessControl | None = None
        self._lag = Histogram(SECONDS)
        self._server: ScrapeServer | None = None
        self._measuring = PeriodicTask("metrics", self._measure_lag, _LAG_INTERVAL_S, log)
        self._due_at = 0.0

    async def start(
        self, address: str, secrets: ServerSecrets | None = None, control: AccessControl | None = None
    ) -> str:
        """Start to serve at HOST:PORT. Returns that address, with the real port if 0 was given."""
        self._secrets, self._control = secrets, control
        registry = CollectorRegistry()
        registry.register(self._collector)
        ProcessCollector(registry=registry)
        host, _, port = address.rpartition(":")
        try:
            server = await asyncio.to_thread(serve, host.strip("[]"), int(port), registry, secrets)
        except OSError as error:
            raise CannotListen(f"cannot show metrics at {address}: {error.strerror}") from None
        self._server = server
        self._due_at = asyncio.get_running_loop().time() + _LAG_INTERVAL_S
        self._measuring.start()
        return f"{host}:{server.server_port}"

    async def stop(self) -> None:
        """Wait for the running scrape, and stop serving. Idempotent."""
        await self._measuring.stop()
        server, self._server = self._server, None
        if server is not None:
            await asyncio.to_thread(self._close, server)

    def _close(self, server: ScrapeServer) -> None:
        self._collector.close()
        server.shutdown()
        server.server_close()

    def _measure_lag(self) -> None:
        now = asyncio.get_running_loop().time()
        self._lag.add(max(0.0, now - self._due_at))
        self._due_at = now + _LAG_INTERVAL_S

    def _loop_lag(self) -> Iterator[Metric]:
        name = f"{self._prefix}_event_loop_lag_seconds"
        yield histogram(name, "Delay of the event loop, measured twice a second.", self._lag)

    def _certificate(self) -> Iterator[Metric]:
        secrets = [] if self._secrets is None else [self._secrets]

        def of_secrets(name: str, sentence: str, value: Callable[[ServerSecrets], float]) -> Metric:
            return gauges(f"{self._prefix}_{name}", sentence, (), [((), value(each)) for each in secrets])

        sentence = "Time at which the certificate of this server expires, in seconds since 1970."
        yield of_secrets("certificate_expiry_timestamp_seconds", sentence, lambda each: each.certificate.ends_at)
        sentence = "1 while the files of --secrets have changed but cannot be used, so the former ones stay in use."
        yield of_secrets("secrets_rejected", sentence, lambda each: each.rejected)

    def _access(self) -> Iterator[Metric]:
        controls = [] if self._control is None else [self._control]

        rejected = [(each.rejections.unauthenticated, each.rejections.denied) for each in controls]
        yield counters(
            f"{self._prefix}_unauthenticated_total",
            "Calls without a key that is in force, by what was wrong with it.",
            ("reason",),
            [((reason,), count) for by_reason, _ in rejected for reason, count in by_reason.copy().items()],
        )
        yield counters(
            f"{self._prefix}_denied_total",
            "Requests of users that lacked the right, by its verb.",
            ("verb",),
            [((verb,), count) for _, by_verb in rejected for verb, count in by_verb.copy().items()],
        )


class _SerializedCollector(Collector):
    """Calls collect functions, one thread at a time, until it is closed."""

    def __init__(self, *collect: Collect) -> None:
        self._collect = collect
        self._lock = threading.Lock()
        self._closed = False

    def describe(self) -> Iterable[Metric]:
        """Return nothing: describing the metrics would mean collecting them."""
        return ()

    def collect(self) -> Iterable[Metric]:
        with self._lock:
            return [] if self._closed else [metric for collect in self._collect for metric in collect()]

    def close(self) -> None:
        """Wait for the running collection, and collect nothing from now on."""
        with self._lock:
            self._closed = True


def on_loop(loop: asyncio.AbstractEventLoop, function: Callable[[], T]) -> T:
    """Call a function on an event loop from another thread, and return its result. Raises `TimeoutError`."""

    async def calling() -> T:
        return function()

    return asyncio.run_coroutine_threadsafe(calling(), loop).result(_TIMEOUT_S)


def counter(name: str, sentence: str, value: float) -> Metric:
    """Return a counter; its name ends with _total."""
    return CounterMetricFamily(name, sentence, value=value)


def counters(
    name: str, sentence: str, labels: tuple[str, ...], values: Iterable[tuple[tuple[str, ...], float]]
) -> Metric:
    family = CounterMetricFamily(name, sentence, labels=labels)
    for of_labels, value in values:
        family.add_metric(of_labels, value)
    return family


def gauge(name: str, sentence: str, value: float) -> Metric:
    return GaugeMetricFamily(name, sentence, value=value)


def gauges(
    name: str, sentence: str, labels: tuple[str, ...], values: Iterable[tuple[tuple[str, ...], float]]
) -> Metric:
    family = GaugeMetricFamily(name, sentence, labels=labels)
    for of_labels, value in values:
        family.add_metric(of_labels, value)
    return family


def histogram(name: str, sentence: str, values: Histogram) -> Metric:
    buckets = [
        (str(float(bound)) if bound < math.inf else "+Inf", float(count)) for bound, count in values.cumulative()
    ]
    return HistogramMetricFamily(name, sentence, buckets=buckets, sum_value=values.total)


def info(name: str, sentence: str, values: dict[str, str]) -> Metric:
    """Return constants as labels of a gauge that is 1; `_info` is appended to the name."""
    return InfoMetricFamily(name, sentence, value=values)


#: Concurrent connections. Each has a thread; a scrape keeps it for some milliseconds.
MAX_CONNECTIONS = 16
#: Timeout in seconds for receiving from and sending to a connection.
_SILENCE_S = 5.0
#: Seconds that a new connection waits for the thread of a connection that was closed to make room.
_ROOM_TIMEOUT_S = 1.0


class ScrapeServer(ThreadingMixIn, WSGIServer):
    """Answers each connection on a thread of its own, with at most `MAX_CONNECTIONS` threads. Started by `serve`."""

    daemon_threads = True
    request_queue_size = 128
    #: For HTTPS; None for HTTP.
    secrets: ServerSecrets | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: Protects the following attributes; notified when a thread ends.
        self._changed = threading.Condition()
        self._busy = 0  # threads
        #: The connections that have not sent a request, oldest first.
        self._silent: dict[socket.socket, None] = {}
        super().__init__(*args, **kwargs)

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection. The TLS handshake is done on its thread, with the same timeout as a scrape."""
        request, address = super().get_request()
        if self.secrets is not None:
            request = self.secrets.context().wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        return request, address

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection, or close it if there is no room."""
        with self._changed:
            if self._busy >= MAX_CONNECTIONS:
                self._close_oldest()
            if not self._changed.wait_for(lambda: self._busy < MAX_CONNECTIONS, _ROOM_TIMEOUT_S):
                self.shutdown_request(request)
                return
            self._busy += 1
            self._silent[request] = None
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a connection, and count its thread as ended."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._changed:
                self._busy -= 1
                self._silent.pop(request, None)
                self._changed.notify_all()

    def request_received(self, request: socket.socket) -> None:
        """Exempt a connection from being closed to make room: it has sent its request."""
        with self._changed:
            self._silent.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: errors of a connection are the peer's problem."""

    def _close_oldest(self) -> None:
        oldest = next(iter(self._silent), None)
        if oldest is not None:
            del self._silent[oldest]
            with contextlib.suppress(OSError):  # this ends the thread, which is reading from the socket
                oldest.shutdown(socket.SHUT_RDWR)


class _Handler(WSGIRequestHandler):
    timeout = _SILENCE_S
    server: ScrapeServer

    def parse_request(self) -> bool:
        is_request = super().parse_request()
        self.server.request_received(self.connection)
        return is_request

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - those of the base class
        """Log nothing."""


def serve(host: str, port: int, registry: CollectorRegistry, secrets: ServerSecrets | None = None) -> ScrapeServer:
    """Start to serve the metrics of a registry on a new thread. Raises `OSError`."""
    family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    kind = type("ScrapeServer", (ScrapeServer,), {"address_family": family, "secrets": secrets})
    server: ScrapeServer = make_server(
        host, port, _logging_failures(make_wsgi_app(registry)), kind, handler_class=_Handler
    )
    threading.Thread(target=server.serve_forever, name="scrapes", daemon=True).start()
    return server


def _logging_failures(answer: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    outage = RetryLog(log)

    def answer_or_log(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
        try:
            answered = answer(environ, start_response)
        except Exception as error:  # noqa: BLE001 - wsgiref would write it to stderr, whatever the format of the log is
            outage.failed("metrics cannot be collected error=%s", error, cause=error)
            start_response("503 Service Unavailable", [])
            return []
        outage.worked("metrics are collected again")
        return answered

    return answer_or_log
