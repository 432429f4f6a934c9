"""The connection to a cluster, as users have it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self, Unpack

from minimq.connection.connection import Connection
from minimq.options import DEFAULT_NAMESERVER, NoOthers, nameserver_addresses, refuse_others
from minimq.transport.dropped import WhenDropped
from minimq.transport.home_process import check_no_signal
from minimq_common.security.channel_security import PLAIN, open_credentials
from minimq_common.security.credentials import CredentialsArgument


class Cluster:
    """The connection to a cluster, which any number of clients share. Thread-safe; a context manager, plain and async.

    It has one thread, which runs an event loop, one set of connections, and one watch of the routes. Every producer,
    consumer or `Admin` takes one in place of the address of a name server, the plain ones and those of `minimq.aio`
    alike; one that is given an address makes a connection of its own. Nothing is connected before the first question.

    A client that is closed leaves the cluster open. Close the clients first, and the cluster last: what a client does
    after that raises `Closed`. A cluster belongs to its process, and not to a fork of it.

        with Cluster("127.0.0.1:9876") as cluster, Producer(cluster) as producer, Admin(cluster) as admin:
            ...

    Args:
        nameserver: "HOST:PORT[,HOST:PORT]", or a sequence of addresses; by default those of the credentials, or
            127.0.0.1:9876.
        credentials: path of the credentials file of a user, or `Credentials`; by default that which the variable
            MINIMQ_CREDENTIALS names. Without any, or with "", connections have no TLS.

    Raises:
        InvalidArgument: an address is not HOST:PORT, or the credentials cannot be used.
    """

    def __init__(
        self,
        nameserver: str | Sequence[str] | None = None,
        *,
        credentials: CredentialsArgument | None = None,
        **unknown: Unpack[NoOthers],
    ) -> None:
        refuse_others(unknown, Cluster)
        opened = open_credentials(credentials)
        if nameserver is None:
            nameserver = DEFAULT_NAMESERVER if opened is None else opened.nameservers
        #: For clients of minimq.
        self.connection = Connection(nameserver_addresses(nameserver), security=opened or PLAIN)
        self._when_dropped = WhenDropped(self, self.connection.close)

    @property
    def nameservers(self) -> tuple[str, ...]:
        """The addresses of the name servers."""
        return self.connection.nameservers.addresses

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()

    def leave_to_client(self) -> Self:
        """Do not warn when it is dropped, because a client has made it and closes it; return itself."""
        self._when_dropped.closed()
        return self

    def close(self) -> None:
        """End all connections and the thread. Idempotent; does nothing in a fork."""
        check_no_signal()
        self._when_dropped.closed()
        self.connection.close()

    async def aclose(self) -> None:
        """Do as `close`, without blocking the event loop of the caller."""
        self._when_dropped.closed()
        await asyncio.to_thread(self.connection.close)
