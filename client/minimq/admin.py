"""Administration of topics, consumer groups, dead letters, messages and brokers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self, Unpack

from minimq.administration.access_admin import AccessAdmin
from minimq.administration.delayed_admin import DelayedAdmin
from minimq.administration.descriptions import BrokerStatus, report_from_wire
from minimq.administration.failures import raise_failures
from minimq.administration.group_admin import GroupAdmin
from minimq.administration.masters import Masters
from minimq.administration.topic_admin import TopicAdmin
from minimq.administration.transaction_admin import TransactionAdmin
from minimq.arguments import waiting_s
from minimq.connection.client import ClusterClient
from minimq.connection.cluster import Cluster
from minimq.dead_letters.letter_admin import DeadLetterAdmin
from minimq.finding.message_admin import MessageAdmin
from minimq.options import NoOthers, refuse_others
from minimq.routes.away import state_of
from minimq.routes.conflict_report import ConflictReport
from minimq.transport.dropped import WhenDropped
from minimq_common.errors import AccessDenied, DeadlineExceeded, InvalidArgument
from minimq_common.model import AwayBroker, BrokerData, MessageQueue, Permission
from minimq_common.moments import Time, timestamp_ms
from minimq_common.names import check_broker, check_group, check_topic
from minimq_common.security.credentials import CredentialsArgument
from minimq_proto.v1 import broker_pb2

#: Time limit of a promotion in seconds: a long lease.
_PROMOTION_S = 60.0


class Admin(TopicAdmin, GroupAdmin, DeadLetterAdmin, DelayedAdmin, TransactionAdmin, MessageAdmin, AccessAdmin):
    """Manages topics, groups, dead letters, delayed messages, transactions, brokers and users, and finds messages.

    Thread-safe; a context manager. A change is applied on every master of the cluster that the name servers know. If a
    change fails half-way, repeat it to complete it.

    Args:
        nameserver: "HOST:PORT[,HOST:PORT]", a sequence of addresses, or a `Cluster` to share.
        timeout_s: timeout in seconds of each call to a server, of waiting for a new master of a broker that is to be
            changed, and of waiting until all name servers show a change.
        credentials: as of `Cluster`.

    Raises:
        InvalidArgument: an address is not HOST:PORT, or the credentials cannot be used.
    """

    def __init__(
        self,
        nameserver: str | Sequence[str] | Cluster | None = None,
        *,
        timeout_s: float = 5.0,
        credentials: CredentialsArgument | None = None,
        **unknown: Unpack[NoOthers],
    ) -> None:
        refuse_others(unknown, Admin)
        waiting_s(timeout_s, "timeout_s")
        if timeout_s <= 0:
            raise InvalidArgument(f"timeout_s is {timeout_s}: it must be above 0")
        self._client = ClusterClient(nameserver, timeout_s, credentials=credentials)
        super().__init__(Masters(self._client))
        self._when_dropped = WhenDropped(self, self._client.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; later calls raise `Closed`. Idempotent."""
        self._when_dropped.closed()
        self._client.close()

    # ---- Brokers --------------------------------------------------------------------------------

    def cluster(self) -> list[BrokerData]:
        """Return the brokers that any of the name servers knows, sorted. Raises `Unavailable` if none answers."""
        return self._masters.brokers()

    def broker_status(self) -> list[BrokerStatus]:
        """Return the status of each replica of each broker, sorted by name and id.

        The list includes brokers that do not answer, with the reason, and brokers that are away.

        Raises:
            AccessDenied: you may not describe the cluster.
            Unavailable: no name server answers.
        """
        replicas = {
            (broker.cluster, broker.broker_name, broker_id): address
            for broker in self.cluster()
            for broker_id, address in broker.addresses.items()
        }
        request = broker_pb2.GetStatusRequest()
        answers, failures = self._masters.calls.call_all(replicas, lambda stub: stub.GetStatus, request)
        for failure in failures.values():
            if isinstance(failure, AccessDenied):  # which all brokers say
                raise failure
        present = [
            BrokerStatus(
                *replica,
                address=address,
                report=report_from_wire(answers[replica]) if replica in answers else None,
                error=failures[replica].message if replica in failures else None,
            )
            for replica, address in replicas.items()
        ]
        away = [
            BrokerStatus(
                broker.cluster,
                broker.broker_name,
                broker_id,
                address,
                report=None,
                error=state_of(broker),
                away_since=broker.since,
            )
            for broker in self.away_brokers()
            for broker_id, address in broker.addresses.items()
        ]
        # One that goes meanwhile was still asked: it is listed once, as away, which says more than that it is silent.
        gone = {(status.cluster, status.broker_name, status.broker_id) for status in away}
        asked = [
            status for replica, status in zip(replicas, present, strict=True) if status.report or replica not in gone
        ]
        return sorted(asked + away, key=lambda status: (status.cluster, status.broker_name, status.broker_id))

    def away_brokers(self) -> list[AwayBroker]:
        """Return the departed brokers that the reachable name servers remember, sorted by name.

        A name server remembers a lost or stopped broker for a day (`--remember-away`), since its queues still exist,
        but not across its own restart. `forget_broker` ends that.
        """
        return self._masters.all_away()

    def forget_broker(self, broker_name: str) -> bool:
        """Make the name servers forget a broker that is away and will not come back.

        If a broker came back without some of its topics, they forget these topics.

        Returns:
            True if a name server remembered it.

        Raises:
            InvalidArgument: the broker is registered and complete, or the name is invalid.
            TransportError: a name server does not answer, and may still remember the broker; the others have forgotten
                it.
        """
        nameservers = self._client.nameservers
        check_broker(broker_name)
        return self._client.wait(lambda: nameservers.forget(broker_name, self._client.timeout_s))

    def conflicts(self) -> list[ConflictReport]:
        """Return the brokers that name servers recently refused or replaced; each name server reports its own."""
        return self._client.wait(self._client.nameservers.conflicts)

    def set_broker_permission(self, broker_name: str, permission: Permission, *, wait: bool = True) -> None:
        """Set the permission of one broker for all of its topics; it survives restarts of the broker.

        Without WRITE, producers send to the other brokers while consumers read the remaining messages: use this to
        empty a broker before you remove it. RocketMQ calls this wipeWritePerm (READ) and addWritePerm (READ_WRITE).

        Args:
            broker_name: of the broker, whose master is running.
            permission: the permission; that of each topic applies as well.
            wait: return only when every reachable name server shows it. The broker itself applies it at once.

        Raises:
            InvalidArgument: the name servers know no master of that name.
            Unavailable: the broker is away; the text names the time.
            DeadlineExceeded: a name server did not show it in time. The permission is set.
            MiniMQError: the broker failed.
        """
        request = broker_pb2.SetPermissionRequest(permission=int(permission))
        answer = self._masters.call(broker_name, lambda stub: stub.SetPermission, request)
        if wait:
            self._masters.wait_until_shown({broker_name: answer.data_version})

    def promote(self, broker_name: str, replica_id: int, *, unclean: bool = False) -> int:
        """Make another replica of a broker its master, and return when it is elected.

        This takes about the time of a lease.

        Args:
            broker_name: of the broker.
            replica_id: the number (`--id`) of the replica; `broker_status` shows it.
            unclean: promote it even if it is not in sync: messages that it lacks are lost.

        Returns:
            The term of the new master.

        Raises:
            InvalidArgument: no such broker or replica is registered, or the broker has no replicas.
            NotInSync: it is not in sync, and `unclean` is not given.
            DeadlineExceeded: it took too long, and may still happen.
            MiniMQError: another one was elected, or the replica failed.
        """
        statuses = self.broker_status()
        names = sorted({status.broker_name for status in statuses})
        if broker_name not in names:
            raise InvalidArgument(
                f"there is no broker {broker_name!r}: the name server knows {', '.join(names) or 'none'}"
            )
        replicas = {
            status.report.replication.replica_id: status.address
            for status in statuses
            if status.broker_name == broker_name and status.report is not None
        }
        if replica_id not in replicas:
            known = ", ".join(map(str, sorted(replicas))) or "none"
            raise InvalidArgument(f"broker {broker_name!r} has no replica {replica_id} that answers: there are {known}")
        request = broker_pb2.PromoteRequest(unclean=unclean)
        give_up = time.monotonic() + _PROMOTION_S
        while True:
            try:
                return self._masters.calls.call(replicas[replica_id], lambda stub: stub.Promote, request).term
            except DeadlineExceeded:  # the promotion continues, and a repeated call waits for it
                if time.monotonic() >= give_up:
                    raise

    # ---- Offsets --------------------------------------------------------------------------------

    def offset_at(self, queue: MessageQueue, when: Time) -> int:
        """Return the first offset stored at or after a time, or the end of the queue if there is none.

        Args:
            queue: the queue.
            when: a datetime with a time zone, "2026-01-31T08:00Z", "-24h", or milliseconds since 1970.

        Raises:
            TopicNotFound, QueueNotFound: there is no such queue.
            Unavailable: its broker is not known, or cannot be reached.
            InvalidArgument: the time is invalid, or has no time zone.
        """
        return self.offsets_at([queue], when)[queue]

    def offsets_at(self, queues: Iterable[MessageQueue], when: Time) -> dict[MessageQueue, int]:
        """Return the offsets of several queues at one time, as `offset_at` does, with parallel calls.

        Raises as `offset_at`; the text names the queue.
        """
        timestamp = timestamp_ms(when, time.time(), "when")
        return self._masters.offsets_at(tuple(queues), timestamp, self._masters.find_readable())

    def committed_offsets(self, group: str, topic: str | None = None) -> dict[MessageQueue, int]:
        """Return the committed offsets of a consumer group, sorted by queue; by default of all topics.

        Raises:
            MiniMQError: a broker failed; the text says which.
        """
        request = broker_pb2.GetCommittedRequest(group=check_group(group), topic=check_topic(topic) if topic else "")
        asked = self._masters.find_readable()
        answers, failures = self._masters.call_all(asked, lambda stub: stub.GetCommitted, request)
        raise_failures(f"the offsets of group {group} are not known", failures, asked, "try again")
        offsets = {
            MessageQueue(item.topic, broker, item.queue_id): item.offset
            for broker, answer in answers.items()
            for item in answer.offsets
        }
        return dict(sorted(offsets.items()))
