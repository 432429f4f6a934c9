"""The public `Cluster`: a connection that clients can share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Self, Unpack

from minimq.connection.connection import Connection
from minimq.connection.finalizers import ClosedByWith, Finalizer
from minimq.options import DEFAULT_NAMESERVER, NoOptions, nameserver_addresses, reject_options
from minimq_common.security.channel_security import PLAIN, open_credentials
from minimq_common.security.credentials import CredentialsArgument


class Cluster(ClosedByWith):
    """The connection to a cluster, for any number of clients. Thread-safe; a context manager, plain and async.

    It has one thread with an event loop, one set of connections, and one watch of the routes. Every producer, consumer
    and `Admin`, of `minimq` or `minimq.aio`, accepts a `Cluster` in place of the address of a name server; one that is
    given an address opens its own. A `Cluster` connects on first use.

    Closing a client does not close a `Cluster` that it was given. Close the clients first: calls of clients raise
    `Closed` once their cluster is closed. A cluster cannot be used in a fork of its process.

        with Cluster("127.0.0.1:9876") as cluster, Producer(cluster) as producer, Admin(cluster) as admin:
            ...

    Args:
        nameserver: "HOST:PORT[,HOST:PORT]", or a sequence of addresses; by default those of the credentials, or
            127.0.0.1:9876.
        credentials: path of the credentials file of a user, or `Credentials`; by default the file that the environment
            variable MINIMQ_CREDENTIALS names. Without any, or with "", connections have no TLS.

    Raises:
        InvalidArgument: an address is not HOST:PORT, or the credentials are invalid.
    """

    def __init__(
        self,
        nameserver: str | Sequence[str] | None = None,
        *,
        credentials: CredentialsArgument | None = None,
        **unknown: Unpack[NoOptions],
    ) -> None:
        reject_options(unknown, Cluster)
        opened = open_credentials(credentials)
        if nameserver is None:
            nameserver = DEFAULT_NAMESERVER if opened is None else opened.nameservers
        #: Internal.
        self.connection = Connection(nameserver_addresses(nameserver), security=opened or PLAIN)
        self._finalizer = Finalizer(self, self.connection.close)

    @property
    def nameservers(self) -> tuple[str, ...]:
        """The addresses of the name servers."""
        return self.connection.nameservers.addresses

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def leave_to_client(self) -> Self:
        """Disable the warning for a cluster that is dropped: a client has created this one, and closes it."""
        self._finalizer.detach()
        return self

    def close(self) -> None:
        """Close all connections and end the thread. Idempotent; does nothing in a fork."""
        self._finalizer.close(self.connection.close)

    async def aclose(self) -> None:
        """Like `close`, without blocking the event loop of the caller."""
        if self._finalizer.detach():
            await asyncio.to_thread(self.connection.close)
