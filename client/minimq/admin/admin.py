"""Administration of topics, consumer groups, dead letters, messages and brokers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack, cast

from minimq.admin.brokers import BrokerOperations
from minimq.admin.group_changes import GroupOperations
from minimq.admin.master_client import MasterClient
from minimq.admin.operation import method, operations_of
from minimq.admin.topic_changes import TopicOperations
from minimq.admin.views import Plan
from minimq.arguments import waiting_s
from minimq.connection.client import ClusterClient
from minimq.connection.cluster import Cluster
from minimq.connection.finalizers import ClosedByWith, Finalizer
from minimq.features.dead_letters.operations import DeadLetterOperations
from minimq.features.delayed.operations import DelayedOperations
from minimq.features.half_messages.operations import TransactionOperations
from minimq.features.search.operations import MessageOperations
from minimq.options import NoOptions, reject_options
from minimq_common.errors import InvalidArgument
from minimq_common.security.credentials import CredentialsArgument


class AdminMethods(
    TopicOperations,
    BrokerOperations,
    GroupOperations,
    DeadLetterOperations,
    DelayedOperations,
    TransactionOperations,
    MessageOperations,
):
    """The methods of `Admin` for threads and for asyncio."""

    @method
    def plan(self, operation: str, /, **arguments: Any) -> Plan:
        """Return what an operation would change, and change nothing. Raises as the operation.

        `rows` of the result have `what`, `now`, `then` and `note`. `is_harmless` is true if no data may be lost.

        Args:
            operation: its command, such as "topic delete".
            **arguments: those of its method, such as `name="orders"`.
        """
        for each in operations_of(AdminMethods):
            if each.name == operation and not each.reads:
                found = each.planned(cast("Admin", self), each.given(**arguments))
                assert found is not None
                return found
        raise InvalidArgument(f"no operation {operation!r} changes anything: give a command such as 'topic delete'")


class Admin(ClosedByWith, AdminMethods):
    """Manages topics, groups, dead letters, delayed messages, transactions and brokers, and finds messages.

    Thread-safe; a context manager. A change is applied on every master of the cluster that the name servers know. If a
    change fails half-way, repeat it to complete it.

    Each method raises `InvalidArgument` for an argument that breaks a rule, `AccessDenied` for a right that the user
    lacks, `Unavailable` if no name server or broker is reached, and another `MinimqError` if a broker fails: the text
    names it. The methods list only further errors.

    Args:
        nameserver: "HOST:PORT[,HOST:PORT]", a sequence of addresses, or a `Cluster` to share.
        timeout_s: timeout in seconds of each call to a server, of the wait for a new master when a broker set has none,
            and of the wait until all name servers show a change.
        credentials: see `Cluster`.

    Raises:
        InvalidArgument: an address is not HOST:PORT, or the credentials cannot be used.
    """

    def __init__(
        self,
        nameserver: str | Sequence[str] | Cluster | None = None,
        *,
        timeout_s: float = 5.0,
        credentials: CredentialsArgument | None = None,
        **unknown: Unpack[NoOptions],
    ) -> None:
        reject_options(unknown, Admin)
        waiting_s(timeout_s, "timeout_s")
        if timeout_s <= 0:
            raise InvalidArgument(f"timeout_s is {timeout_s}: it must be above 0")
        self._client = ClusterClient(nameserver, timeout_s, credentials=credentials)
        super().__init__(MasterClient(self._client))
        self._finalizer = Finalizer(self, self._client.close)

    def close(self) -> None:
        """Close all connections; later calls raise `Closed`. Idempotent."""
        self._finalizer.close(self._client.close)
