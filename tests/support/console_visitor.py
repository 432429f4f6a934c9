"""A visitor of the console: keeps cookies as a browser does, fills in forms, and says where requests come from."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from html import unescape
from http.client import HTTPConnection, HTTPMessage
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import urlencode, urlsplit


@dataclass(frozen=True)
class Reply:
    """The answer to a request."""

    status: int
    headers: HTTPMessage
    text: str

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
        """Return a page."""
        return self._ask("GET", path, None, {"Accept": "text/html", **headers})

    def json(self, path: str) -> Any:
        """Return the JSON twin of a page."""
        found = self.get(path, Accept="application/json")
        assert found.status == 200, found.text
        return json.loads(found.text)

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

    def sign_in(self, name: str, key: str) -> Reply:
        """Sign in with a name and a key."""
        form = self.get("/sign-in")
        return self.post("/sign-in", {"token": form.token, "to": "/", "name": name, "key": key})

    def _ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Reply:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        connection = HTTPConnection(*self._at, timeout=60)
        try:
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        for line in response.headers.get_all("Set-Cookie", []):
            self.cookies.update({name: morsel.value for name, morsel in SimpleCookie(line).items()})
        return Reply(response.status, response.headers, text)
