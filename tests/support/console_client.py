"""A client of the console, as plain as can be: it sends what it is told, and returns what comes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPMessage, HTTPResponse
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Answer:
    """The answer to a request."""

    status: int
    headers: HTTPMessage
    body: bytes
    took_s: float

    @property
    def text(self) -> str:
        return self.body.decode()


class ConsoleClient:
    """Asks one console. A request has a connection of its own."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        assert parts.hostname is not None
        assert parts.port is not None
        self._at = parts.hostname, parts.port

    def get(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """Return the answer; names of headers have _ in place of -."""
        began = time.monotonic()
        with self._asked(path, method, headers) as response:
            return Answer(response.status, response.headers, response.read(), time.monotonic() - began)

    def json(self, path: str, status: int = 200) -> Any:
        """Return the JSON twin of a page."""
        answer = self.get(path, Accept="application/json")
        assert answer.status == status, answer.text
        assert answer.headers["Content-Type"] == "application/json"
        return json.loads(answer.body)

    @contextmanager
    def events(self, path: str, **headers: str) -> Iterator[Iterator[tuple[str, str]]]:
        """Open a stream of events; yields pairs of their name and what they say."""
        with self._asked(path, "GET", {"Accept": "text/event-stream", **headers}) as response:
            assert response.status == 200, response.read().decode()
            assert response.headers["Content-Type"].startswith("text/event-stream")
            yield _events_of(response)

    @contextmanager
    def _asked(self, path: str, method: str, headers: dict[str, str]) -> Iterator[HTTPResponse]:
        connection = HTTPConnection(*self._at, timeout=60)
        try:
            connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            yield connection.getresponse()
        finally:
            connection.close()


def _events_of(response: HTTPResponse) -> Iterator[tuple[str, str]]:
    name, lines = "", list[str]()
    while line := response.readline():
        field, _, value = line.decode().rstrip("\n").partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            lines.append(value)
        elif not field and lines:
            yield name, "\n".join(lines)
            name, lines = "", []
