"""Looking after topics, consumer groups, dead letters and brokers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from minimq.administration.access_admin import AccessAdmin
from minimq.administration.descriptions import BrokerStatus, report_from_wire
from minimq.administration.failures import raise_failures
from minimq.administration.group_admin import GroupAdmin
from minimq.administration.masters import Masters
from minimq.administration.topic_admin import TopicAdmin
from minimq.arguments import check_timeout
from minimq.connection.client import ClusterClient
from minimq.connection.cluster import Cluster
from minimq.dead_letters.letter_admin import DeadLetterAdmin
from minimq.routes.away import state_of
from minimq.routes.conflict_report import ConflictReport
from minimq.transport.dropped import WhenDropped
from minimq_common.errors import DeadlineExceeded, InvalidArgument
from minimq_common.model import AwayBroker, BrokerData, MessageQueue, Permission
from minimq_common.moments import Time, timestamp_ms
from minimq_common.names import check_broker, check_group, check_topic
from minimq_common.security.credentials import CredentialsArgument
from minimq_proto.v1 import broker_pb2

#: How long a promotion may take, in seconds: a long lease.
_PROMOTION_S = 60.0


class Admin(TopicAdmin, GroupAdmin, DeadLetterAdmin, AccessAdmin):
    """Looks after topics, consumer groups, dead letters, brokers and users. Thread-safe; a context manager.

    Whatever changes something does so on every master of the cluster that the name servers know, and may be repeated
    when it failed half-way: what has been done already stays done.

    Args:
        nameserver: "HOST:PORT[,HOST:PORT]", a sequence of addresses, or a `Cluster` that others use as well.
        timeout_s: seconds that one call to a server may take, seconds to wait until a broker has a master again on
            which something is to be changed, and seconds to wait until all name servers show the change.
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
    ) -> None:
        check_timeout(timeout_s, "timeout_s")
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
        """End all connections; later calls raise `Closed`. Idempotent."""
        self._when_dropped.closed()
        self._client.close()

    # ---- Brokers --------------------------------------------------------------------------------

    def cluster(self) -> list[BrokerData]:
        """Return the brokers that the name servers know together, sorted. Raises `Unavailable` when none answers."""
        return self._masters.brokers()

    def broker_status(self) -> list[BrokerStatus]:
        """Return what each replica of each broker says of itself, sorted by name and id.

        A broker that does not answer is in the list, with the reason, and so is one that is away. Raises `Unavailable`
        when no name server answers.
        """
        replicas = {
            (broker.cluster, broker.broker_name, broker_id): address
            for broker in self.cluster()
            for broker_id, address in broker.addresses.items()
        }
        request = broker_pb2.GetStatusRequest()
        answers, failures = self._masters.calls.call_all(replicas, lambda stub: stub.GetStatus, request)
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
        return sorted(present + away, key=lambda status: (status.cluster, status.broker_name, status.broker_id))

    def away_brokers(self) -> list[AwayBroker]:
        """Return the brokers that have gone, sorted by name, as the name servers that answer remember them.

        A name server remembers a broker for a day (`--remember-away`), but not over a restart of its own; one that was
        stopped as well, since its queues exist. `forget_broker` ends it.
        """
        return self._masters.all_away()

    def forget_broker(self, broker_name: str) -> bool:
        """Have the name servers forget a broker that is away, because it will not come back.

        Of one that came back without some of its topics, those are forgotten.

        Returns:
            Whether one of them remembered it.

        Raises:
            InvalidArgument: it is registered and lacks nothing; or no broker can have that name.
            TransportError: a name server does not answer, and may remember it; the others were told.
        """
        nameservers = self._client.nameservers
        check_broker(broker_name)
        return self._client.wait(lambda: nameservers.forget(broker_name, self._client.timeout_s))

    def conflicts(self) -> list[ConflictReport]:
        """Return the brokers that name servers refused or replaced lately; each name server tells of its own."""
        return self._client.wait(self._client.nameservers.conflicts)

    def set_broker_permission(self, broker_name: str, permission: Permission, *, wait: bool = True) -> None:
        """Set what may be done with all topics of one broker; it is kept over restarts of the broker.

        Without WRITE, producers send to the other brokers while consumers read what is here: so a broker is emptied
        before it is taken away. What RocketMQ calls wipeWritePerm and addWritePerm is this, with READ and READ_WRITE.

        Args:
            broker_name: of the broker, whose master is running.
            permission: what may be done; the permission of each topic holds besides.
            wait: return only when every name server that answers shows it. The broker itself keeps to it at once.

        Raises:
            InvalidArgument: the name servers know no master of that name.
            Unavailable: the broker is away; the text says since when.
            DeadlineExceeded: a name server did not show it in time. It has been set.
            MiniMQError: the broker failed.
        """
        request = broker_pb2.SetPermissionRequest(permission=int(permission))

        def set_permission() -> broker_pb2.SetPermissionResponse:
            [master] = self._masters.find_all(names=[broker_name]).values()
            return self._masters.calls.call(master, lambda stub: stub.SetPermission, request)

        answer = self._masters.with_retries(set_permission)
        if wait:
            self._masters.wait_until_shown({broker_name: answer.data_version})

    def promote(self, broker_name: str, replica_id: int, *, unclean: bool = False) -> int:
        """Make another replica of a broker its master, and return when it leads. Takes about as long as a lease.

        Args:
            broker_name: of the broker.
            replica_id: number of the replica, as it was started with; `broker_status` shows it.
            unclean: also when it is not in sync: what it does not have is lost.

        Returns:
            The term that it leads.

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
            except DeadlineExceeded:  # it goes on, and who asks again waits for the same promotion
                if time.monotonic() >= give_up:
                    raise

    # ---- Offsets --------------------------------------------------------------------------------

    def offset_at(self, queue: MessageQueue, when: Time) -> int:
        """Return the first offset stored at or after a moment, or the end of the queue when there is none.

        Args:
            queue: which one.
            when: a datetime with a time zone, "2026-01-31T08:00Z", "-24h", or milliseconds since 1970.

        Raises:
            TopicNotFound, QueueNotFound: there is no such queue.
            Unavailable: its broker is not known, or not reached.
            InvalidArgument: it is no moment, or has no time zone.
        """
        return self.offsets_at([queue], when)[queue]

    def offsets_at(self, queues: Iterable[MessageQueue], when: Time) -> dict[MessageQueue, int]:
        """Do as `offset_at` for several queues, for the same moment and with parallel calls.

        Raises as `offset_at`; the text names the queue.
        """
        timestamp = timestamp_ms(when, time.time(), "when")
        return self._masters.offsets_at(tuple(queues), timestamp, self._masters.find_readable())

    def committed_offsets(self, group: str, topic: str | None = None) -> dict[MessageQueue, int]:
        """Return the offsets that a consumer group has committed, sorted by queue; of all topics when none is given.

        Raises:
            MiniMQError: a broker failed; the text says which.
        """
        request = broker_pb2.GetCommittedRequest(group=check_group(group), topic=check_topic(topic) if topic else "")
        asked = self._masters.find_readable()
        answers, failures = self._masters.calls.call_all(asked, lambda stub: stub.GetCommitted, request)
        raise_failures(f"the offsets of group {group} are not known", failures, asked, "try again")
        offsets = {
            MessageQueue(item.topic, broker, item.queue_id): item.offset
            for broker, answer in answers.items()
            for item in answer.offsets
        }
        return dict(sorted(offsets.items()))
