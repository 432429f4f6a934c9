"""A small HTTP server with the answers of a schema registry, for serializers and other clients of registries."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit
from uuid import NAMESPACE_URL, uuid5

Json = dict[str, object]


@dataclass
class RegistryServer:
    """Schemas by id, subjects with their versions, and what was asked.

    Attributes:
        url: the address.
        schemas: what was registered, as the bodies of requests have it; its id is its index and `first_id`.
        subjects: ids by subject, in the order of versions.
        asked: "METHOD /path" of each request.
        headers: of the last request.
        failures: statuses that the next requests are answered with.
        rejection: status and text that registrations are answered with.
        has_guids: as newer registries.
        raw: the bytes that all requests are answered with.
        raw_status: the status of these answers.
        more_headers: further ones of all answers.
    """

    url: str = ""
    schemas: list[Json] = field(default_factory=list)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    failures: list[int] = field(default_factory=list)
    rejection: tuple[int, str] | None = None
    has_guids: bool = True
    raw: bytes | None = None
    raw_status: int = 200
    more_headers: dict[str, str] = field(default_factory=dict)
    first_id: int = 100_001

    def answer(self, method: str, path: str, body: Json) -> tuple[int, Json]:
        """Return status and body of the answer to a request."""
        if self.failures:
            return self.failures.pop(0), {"error_code": 50001, "message": "told to fail"}
        names = [unquote(name) for name in path.strip("/").split("/")]
        if method == "GET":
            found = self._of_version(*names[1::2]) if names[0] == "subjects" else self._of_number(names[1:])
        elif names[2:] and self.rejection is not None:
            return self.rejection[0], {"error_code": self.rejection[0] * 100 + 1, "message": self.rejection[1]}
        elif names[2:]:
            found = self._version(names[1], self._register(names[1], body))
        else:
            numbers = (number for number in self.subjects.get(names[1], ()) if self._stored(number) == _normal(body))
            found = next((self._version(names[1], number) for number in numbers), None)
        return (200, found) if found is not None else (404, {"error_code": 40403, "message": "Schema not found"})

    def _of_number(self, names: list[str]) -> Json | None:
        for number in range(self.first_id, self.first_id + len(self.schemas)):
            if names in (["ids", str(number)], ["guids", self._guid(number)]):
                return self._known(number)
        return None

    def _of_version(self, subject: str, version: str) -> Json | None:
        versions = self.subjects.get(subject, [])
        index = len(versions) if version == "latest" else int(version)
        return self._version(subject, versions[index - 1]) if 0 < index <= len(versions) else None

    def add(self, subject: str, schema: str, kind: str = "AVRO", references: object = ()) -> int:
        """Register a schema; return its id."""
        return self._register(subject, {"schema": schema, "schemaType": kind, "references": list(references)})  # type: ignore[call-overload]

    def _register(self, subject: str, body: Json) -> int:
        stored = _normal(body)
        if stored not in self.schemas:
            self.schemas.append(stored)
        number = self.first_id + self.schemas.index(stored)
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def _stored(self, number: int) -> Json:
        return self.schemas[number - self.first_id]

    def _guid(self, number: int) -> str:
        return str(uuid5(NAMESPACE_URL, json.dumps(self._stored(number), sort_keys=True)))

    def _known(self, number: int) -> Json:
        told = dict(self._stored(number))
        if told["schemaType"] == "AVRO":
            del told["schemaType"]  # as registries do
        return told | ({"guid": self._guid(number)} if self.has_guids else {})

    def _version(self, subject: str, number: int) -> Json:
        version = self.subjects[subject].index(number) + 1
        return {"subject": subject, "version": version, "id": number, **self._known(number)}


def _normal(body: Json) -> Json:
    return {
        "schema": body["schema"],
        "schemaType": body.get("schemaType") or "AVRO",
        "references": body.get("references") or [],
    }


@contextmanager
def registry_server(context: ssl.SSLContext | None = None) -> Iterator[RegistryServer]:
    """Serve at a free port of the loopback address, for a block; by HTTPS with a context."""
    registry = RegistryServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._serve()

        def do_POST(self) -> None:
            self._serve()

        def _serve(self) -> None:
            registry.asked.append(f"{self.command} {urlsplit(self.path).path}")
            registry.headers = {name.title(): value for name, value in self.headers.items()}
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
            if registry.raw is None:
                status, told = registry.answer(self.command, urlsplit(self.path).path, body)
                data = json.dumps(told).encode()
            else:
                status, data = registry.raw_status, registry.raw
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            for name, value in registry.more_headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    registry.url = f"{'http' if context is None else 'https'}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
