"""The masters of a cluster: who they are, calls to all of them, and waiting until name servers show what they did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minimq.administration.fan_out import FanOut
from minimq.routes.nameserver_link import NameServerLinks
from minimq_common.errors import InvalidArgument, Unavailable
from minimq_common.model import MASTER_ID, BrokerData, Permission, TopicRoute
from minimq_proto.v1 import broker_pb2

#: A topic by the name of the broker that has it so; None where it is gone.
TopicByBroker = Mapping[str, broker_pb2.Topic | None]


class Masters:
    """Finds and calls the masters that the name servers know. Thread-safe.

    Args:
        nameservers: connections to all name servers.
        calls: makes the calls to brokers.
        timeout_s: seconds to wait until all name servers show a change.
    """

    def __init__(self, nameservers: NameServerLinks, calls: FanOut, timeout_s: float) -> None:
        self.nameservers = nameservers
        self.calls = calls
        self._timeout_s = timeout_s

    def close(self) -> None:
        """End all connections. Idempotent."""
        self.nameservers.close()
        self.calls.close()

    def brokers(self) -> list[BrokerData]:
        """Return the brokers that the name servers know together, sorted. Raises `Unavailable` when none answers."""
        known = self.nameservers.cluster()  # which has the words for it when nobody answers
        return self.nameservers.brokers_of_all() or known

    def find(self, cluster: str | None = None, names: Sequence[str] = ()) -> dict[str, str]:
        """Return the addresses of masters by broker name.

        Args:
            cluster: only those of this cluster.
            names: only these; all when empty.

        Raises:
            Unavailable: there is none.
            InvalidArgument: there is no such cluster, or a name is not that of a master.
        """
        brokers = self.brokers()
        if not brokers:
            raise Unavailable(
                "no broker is registered with the name server: start one with "
                f"`minimq-broker --nameserver {self.nameservers.preferred()}`"
            )
        known = sorted({broker.cluster for broker in brokers})
        if cluster is not None and cluster not in known:
            raise InvalidArgument(f"there is no cluster {cluster!r}: the name server knows {', '.join(known)}")
        if cluster is not None:
            brokers = [broker for broker in brokers if broker.cluster == cluster]
        masters = {broker.broker_name: broker.addresses[MASTER_ID] for broker in brokers if broker.master}
        if not masters:
            listed = ", ".join(broker.broker_name for broker in brokers)
            raise Unavailable(f"of {listed} only slaves are running: start a master with `minimq-broker --id 0`")
        unknown = [name for name in names if name not in masters]
        if unknown:
            raise InvalidArgument(
                f"there is no broker {', '.join(map(repr, unknown))}: the name server knows {', '.join(masters)}"
            )
        return {name: masters[name] for name in names} if names else masters

    def wait_until_shown(self, topic: str, wanted: TopicByBroker) -> None:
        """Wait until every name server that answers shows a topic as wanted on these brokers.

        Raises:
            DeadlineExceeded: the text names the name server and what it does not show.
        """

        def missing(route: TopicRoute) -> str | None:
            shown = {data.broker_name: data for data in route.queues}
            for broker, settings in wanted.items():
                data = shown.get(broker)
                if settings is None:
                    if data is not None:
                        return f"it still shows topic {topic} on {broker}"
                elif data is None or (data.read_queues, data.write_queues, data.permission) != _as_shown(settings):
                    return f"it does not show topic {topic} on {broker} as it is now"
            return None

        self.nameservers.wait_for_route(topic, missing, self._timeout_s)


def _as_shown(topic: broker_pb2.Topic) -> tuple[int, int, int]:
    return topic.read_queues, topic.write_queues, topic.allowed & Permission.READ_WRITE
