"""A visitor of the console: keeps cookies as a browser does, fills in forms, and says where requests come from."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from html import unescape
from http.client import HTTPConnection, HTTPMessage, HTTPResponse
from http.cookies import SimpleCookie
from typing import Any
from unittest.mock import patch
from urllib.parse import urlencode, urlsplit

import minimq_console.page
from minimq.admin.views import json_text
from minimq_console.answers import Rendering
from minimq_console.page import Page


@dataclass(frozen=True)
class Reply:
    """The answer to a request."""

    status: int
    headers: HTTPMessage
    body: bytes
    took_s: float

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def token(self) -> str:
        """The token of its forms."""
        return self.field("token")

    def field(self, name: str) -> str:
        """Return the value of a field of its form."""
        for tag in re.findall(r"<input[^>]*>", self.text):
            if f'name="{name}"' in tag:
                found = re.search(r'value="([^"]*)"', tag)
                assert found is not None
                return unescape(found[1])
        raise AssertionError(f"there is no field {name} in {self.text}")


class ConsoleVisitor:
    """Asks one console, and follows nothing by itself."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        assert parts.hostname is not None
        assert parts.port is not None
        self._at = parts.hostname, parts.port
        self.address = address
        self.cookies: dict[str, str] = {}

    def get(self, path: str, **headers: str) -> Reply:
        """Return a page; names of headers have _ in place of -."""
        return self._ask("GET", path, None, {"Accept": "text/html", **headers})

    def data(self, path: str, **headers: str) -> Any:
        """Return the data of a page of a console in this process, as its template gets it."""
        seen: list[dict[str, object]] = []

        def page(rendering: Rendering, page: Page, data: dict[str, object], context: Mapping[str, object]) -> str:
            seen.append(data)
            return original(rendering, page, data, context)

        original = minimq_console.page.whole
        with patch.object(minimq_console.page, "whole", page):
            found = self.get(path, **headers)
        assert found.status == 200, found.text
        return json.loads(json.dumps(seen[-1], default=json_text))

    @contextmanager
    def events(self, path: str) -> Iterator[Iterator[tuple[str, str]]]:
        """Open a stream of events; yields pairs of their name and what they say."""
        with self._asked("GET", path, None, {"Accept": "text/event-stream"}) as response:
            assert response.status == 200, response.read().decode()
            assert response.headers["Content-Type"].startswith("text/event-stream")
            yield _events_of(response)

    def post(self, path: str, fields: dict[str, str], **headers: str) -> Reply:
        """Send a form, as a page of the console does unless headers say otherwise."""
        own = {
            "Accept": "text/html",
            "Origin": self.address,
            "Sec-Fetch-Site": "same-origin",
            "Content-Type": "application/x-www-form-urlencoded",
            **headers,
        }
        return self._ask("POST", path, urlencode(fields).encode(), own)

    def sign_in(self, key: str) -> Reply:
        form = self.get("/sign-in")
        return self.post("/sign-in", {"token": form.token, "to": "/", "key": key})

    def _ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Reply:
        began = time.monotonic()
        with self._asked(method, path, body, headers) as response:
            reply = Reply(response.status, response.headers, response.read(), time.monotonic() - began)
        for line in reply.headers.get_all("Set-Cookie", []):
            self.cookies.update({name: morsel.value for name, morsel in SimpleCookie(line).items()})
        return reply

    @contextmanager
    def _asked(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Iterator[HTTPResponse]:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        connection = HTTPConnection(*self._at, timeout=60)
        try:
            connection.request(method, path, body, sent)
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
