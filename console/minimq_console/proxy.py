"""The headers of a reverse proxy in front of the console."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.datastructures import Headers
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from minimq_console.hosts import prefix_of


class ProxiedApp(ProxyHeadersMiddleware):
    """Takes the scheme, the address of the browser and the path prefix of the console from a trusted proxy.

    Proxies may strip the prefix from the path, or pass the path on as it is.
    """

    def __init__(self, app: Any, trusted: Sequence[str] = (), root_path: str = "") -> None:
        super().__init__(app, list(trusted))
        self._root_path = root_path

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request."""
        if scope["type"] == "http":
            peer, root_path = (scope.get("client") or ("",))[0], self._root_path
            if peer in self.trusted_hosts:
                root_path = prefix_of(Headers(scope=scope).get("x-forwarded-prefix", "")) or root_path
            scope["root_path"] = root_path
            scope["path"] = _prefixed(scope["path"], root_path)
            scope["raw_path"] = _prefixed(scope["raw_path"].decode("ascii"), root_path).encode()
        await super().__call__(scope, receive, send)


def _prefixed(path: str, root_path: str) -> str:
    if path == root_path:
        return f"{path}/"
    return path if path.startswith(f"{root_path}/") else root_path + path
