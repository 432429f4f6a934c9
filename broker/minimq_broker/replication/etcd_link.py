"""Transactions in etcd: at one of its members, and at another one when that does not answer."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minimq_common.errors import InvalidArgument, Unavailable
from minimq_common.security.certificates import Trust
from minimq_common.security.channel_security import PLAIN, ChannelSecurity
from minimq_common.wire import rpc


@dataclass(frozen=True, slots=True)
class Stored:
    """The value of a key, and the revision of etcd at which it was put there."""

    value: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class EtcdResult:
    """The result of a transaction: if it was carried out, and all keys with the prefix as they are after it."""

    succeeded: bool
    stored: Mapping[str, Stored]

    @property
    def latest(self) -> int:
        """The revision of the latest put; no key is ever removed, so of two outcomes the later one has the larger."""
        return max((stored.revision for stored in self.stored.values()), default=0)

    def revision(self, key: str) -> int:
        """Return the revision of a key; 0 when it does not exist."""
        return self.stored[key].revision if key in self.stored else 0


class EtcdLink:
    """Speaks to etcd. Not thread-safe: it lives on one event loop."""

    def __init__(self, endpoints: Sequence[str], timeout_s: float, security: ChannelSecurity = PLAIN) -> None:
        try:
            self._library = importlib.import_module("aetcd")
        except ImportError:
            text = "a controller in etcd needs a library that is not installed: pip install 'minimq[etcd]'"
            raise InvalidArgument(text) from None
        self._endpoints = list(endpoints)
        self._timeout_s = timeout_s
        self._security = security
        #: By member, and under whose certificates it was made; the library has no types.
        self._clients: dict[str, tuple[Any, Trust | None]] = {}
        #: Channels of former certificates, whose calls continue.
        self._former: list[Any] = []

    async def transact(self, expected: Mapping[str, int], puts: Mapping[str, bytes], prefix: str) -> EtcdResult:
        """Put values if keys have the expected revisions, and return all keys with a prefix, in one step."""
        make = self._library.client.transactions
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        look = make.Get(prefix.encode(), end.encode())
        compare = [make.Mod(key.encode()) == revision for key, revision in expected.items()]
        success = [make.Put(key.encode(), value) for key, value in puts.items()]
        reason = ""
        for endpoint in tuple(self._endpoints):
            try:
                succeeded, responses = await self._client(endpoint).transaction(compare, [*success, look], [look])
            except self._library.ClientError as error:
                reason = rpc.why_unreached(str(error))
                self._endpoints.append(self._endpoints.pop(0))  # the next one is tried first from now on
            else:
                found = {item.key.decode(): Stored(item.value, item.mod_revision) for _, item in responses[-1]}
                return EtcdResult(succeeded, found)
        raise Unavailable(f"etcd at {', '.join(sorted(self._endpoints))} does not answer: {reason}")

    async def close(self) -> None:
        """End the connections; calls in progress fail."""
        clients, self._clients = self._clients, {}
        former, self._former = self._former, []
        for client in (*former, *(client for client, _ in clients.values())):
            await client.close()

    def _client(self, endpoint: str) -> Any:
        trust = self._security.trust()
        client, known = self._clients.get(endpoint, (None, None))
        if client is None or known is not trust:
            if client is not None:
                self._former.append(client)
            client = self._new_client(endpoint, trust)
            self._clients[endpoint] = client, trust
        return client

    def _new_client(self, endpoint: str, trust: Trust | None) -> Any:
        host, _, port = endpoint.rpartition(":")
        client = self._library.Client(host, int(port), timeout=self._timeout_s, options=dict(rpc.CHANNEL_OPTIONS))
        if trust is not None:

            async def connect() -> None:
                if client.channel is None:
                    client.channel = rpc.open_aio_channel(endpoint, trust)
                    client.kvstub = self._library.rpc.KVStub(client.channel)
                    client._connected.set()

            client.connect = connect
        return client
