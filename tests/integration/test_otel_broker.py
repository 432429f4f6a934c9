"""Spans that a real broker exports over HTTP."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from minimq import Admin, LocalCluster, Message, Producer
from minimq_broker.options import BrokerOptions
from minimq_broker.otel.batch_tracer import BatchTracer
from minimq_broker.otel.start import start_spans
from minimq_common.errors import InvalidArgument
from minimq_common.properties import parsed_parent, recorded_parent
from support.cases import for_each
from support.command import environment
from support.spans import Telemetry
from support.waiting import wait_until

TIMEOUT_S = 30.0
GOOD = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector:
    """Takes spans as a collector does."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                collector.take(ExportTraceServiceRequest.FromString(self.rfile.read(length)))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def take(self, request: ExportTraceServiceRequest) -> None:
        for of_resource in request.resource_spans:
            told = {each.key: each.value.string_value for each in of_resource.resource.attributes}
            self.services.add(f"{told['service.name']} {told['service.instance.id']}")
            for of_scope in of_resource.scope_spans:
                self.spans += of_scope.spans

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    made = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.endpoint)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield made
    made.close()


def test_the_spans_of_a_batch_are_in_the_trace_of_whoever_has_sent_it(collector: Collector, tmp_path: Path) -> None:
    telemetry = Telemetry()
    with LocalCluster(brokers=1, data_dir=tmp_path, broker_options={"otel": True}) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=1)
        with Producer(cluster.nameserver) as plain:
            plain.send(Message("t", b"of nobody"))
            plain.send(Message("t", b"hostile", properties={"traceparent": "00-" + "0" * 51 + "1"}))
            plain.send(Message("t", b"not recorded", properties={"traceparent": GOOD[:-1] + "0"}))
        with telemetry.instrumented(), Producer(cluster.nameserver) as producer:
            producer.send(Message("t", b"alone"))
            producer.send_many(Message("t", b"%d" % number) for number in range(300))
        wait_until(lambda: len(collector.spans) >= 8, TIMEOUT_S)
    alone, many = telemetry.named("send t")
    whole = sorted(collector.named("append t"), key=lambda span: span.start_time_unix_nano)
    assert len(collector.spans) == 8, "nobody asked for others"
    for sent, appended, count in zip((alone, many), whole, (1, 300), strict=True):
        assert sent.context is not None
        assert appended.trace_id.hex() == f"{sent.context.trace_id:032x}"
        assert appended.parent_span_id.hex() == f"{sent.context.span_id:016x}"
        told = {each.key: each.value.string_value or each.value.int_value for each in appended.attributes}
        assert told["messaging.batch.message_count"] == count
        assert told["messaging.destination.partition.id"] == "broker-a/0"
        steps = [span for span in collector.spans if span.parent_span_id == appended.span_id]
        assert sorted(span.name for span in steps) == ["commit", "confirm", "wait"]
        for span in steps:
            assert appended.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
            assert span.end_time_unix_nano <= appended.end_time_unix_nano
    assert collector.services == {"minimq-broker broker-a/0"}
    telemetry.close()


def test_a_broker_makes_spans_of_so_many_batches_in_a_second() -> None:
    exporter = InMemorySpanExporter()
    tracer = BatchTracer("b", 0, 5, exporter)
    assert [tracer.parent(text) for text in ("", "no context", GOOD.upper(), "ff" + GOOD[2:], GOOD + "-x")] == [
        None
    ] * 5
    found = [tracer.parent(GOOD) for _ in range(100)]
    assert 5 <= sum(each is not None for each in found) <= 10, "in one second, or two"
    tracer.close()


@for_each(
    ("text", "is_recorded"),
    [(GOOD, True), (GOOD[:-1] + "2", False), (GOOD + " ", False), ("", False), ("ä" * 54 + "1", False)],
)
def test_a_context_is_sent_along_if_it_is_recorded(text: str, is_recorded: bool) -> None:
    assert recorded_parent({"traceparent": text}) == (text if is_recorded else "")
    assert recorded_parent({}) == recorded_parent({"traceparent": 1}) == ""
    assert (parsed_parent(text) is not None) == (text[:54] == GOOD[:54] and len(text) == 55)


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    assert start_spans(BrokerOptions(), AsyncExitStack()) is None
    monkeypatch.delitem(sys.modules, "minimq_broker.otel.batch_tracer")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(InvalidArgument, match=r"pip install 'minimq\[otel-broker\]'"):
        start_spans(BrokerOptions(otel=True), AsyncExitStack())


def test_who_does_not_use_it_does_not_import_it() -> None:
    program = (
        "import sys, minimq.aio, minimq.admin.admin, minimq_cli.main, minimq_broker.broker, minimq_nameserver.server\n"
        "from minimq import Producer, PullConsumer, PushConsumer, WorkQueueConsumer, TransactionalProducer\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
