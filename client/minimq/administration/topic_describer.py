"""The part of `Admin` that describes topics."""

from __future__ import annotations

from collections.abc import Iterable

from minimq.administration.descriptions import TopicDescription, topic_from_wire
from minimq.administration.failures import raise_failures
from minimq.administration.masters import Masters
from minimq.routes.away import check_route
from minimq_common.errors import TopicNotFound
from minimq_common.model import TopicRoute
from minimq_common.names import check_topic
from minimq_proto.v1 import broker_pb2


class TopicDescriber:
    """Lists and describes topics; users have it as `Admin`."""

    def __init__(self, masters: Masters) -> None:
        self._masters = masters

    def list_topics(self) -> list[str]:
        """Return the names of all topics, sorted, also of those whose brokers are all away.

        Raises `Unavailable` when no name server answers.
        """
        calls = self._masters.calls
        return calls.wait(lambda: calls.nameservers.topic_names(calls.timeout_s))

    def routes(self) -> list[TopicRoute]:
        """Return the routes of all topics, sorted; one whose brokers are all away has no queues.

        Raises `Unavailable` when no name server answers.
        """
        calls = self._masters.calls
        return calls.wait(lambda: calls.nameservers.topics(calls.timeout_s))

    def describe_topic(self, name: str) -> TopicDescription:
        """Return the settings of a topic and where its queues begin and end. Slaves are asked where there is no master.

        The queues of other brokers are missing: `away` of the answer names those that have gone, as name servers
        remember them, and `unanswered` those that do not answer within the timeout of this `Admin`.

        Raises:
            TopicNotFound: no broker carries it.
            TopicUnavailable: all brokers that carry it are away.
            MiniMQError: a broker refused to answer, or none that may carry it answers; the text says which.
        """
        check_topic(name)
        masters = self._masters.find_readable()
        answers, failures = self._masters.describe_each(name, masters)
        if not answers or any(error.answered for error in failures.values()):
            raise_failures(f"topic {name} cannot be looked up", failures, masters, "see to these brokers")
        away = tuple(broker for broker in self._masters.away_lookup()(name) if broker.broker_name not in answers)
        if not answers:
            check_route(TopicRoute(name, (), {}, away))
            raise TopicNotFound.nowhere(name)
        return topic_from_wire(name, answers, away, {broker: error.message for broker, error in failures.items()})

    def describe_topics(self, names: Iterable[str]) -> list[TopicDescription]:
        """Return the descriptions of several topics, with parallel calls, in the order of their names.

        A topic that no broker carries is left out. A broker that does not answer about a topic, or refuses to, is
        listed in `unanswered` of its description, with the reason, and its queues are missing.

        Raises `Unavailable` when no name server answers, or no broker is known.
        """
        wanted = [check_topic(name) for name in dict.fromkeys(names)]
        if not wanted:
            return []
        masters = self._masters.find_readable()
        keys = [(name, broker) for name in wanted for broker in masters]
        answers, failures = self._masters.call_all(
            {key: masters[key[1]] for key in keys},
            lambda stub: stub.DescribeTopic,
            {key: broker_pb2.DescribeTopicRequest(topic=key[0]) for key in keys},
        )
        away = self._masters.away_lookup()
        found = []
        for name in wanted:
            told = {broker: answers[name, broker] for broker in masters if (name, broker) in answers}
            unanswered = {
                broker: failures[name, broker].message
                for broker in masters
                if (name, broker) in failures and not isinstance(failures[name, broker], TopicNotFound)
            }
            gone = tuple(broker for broker in away(name) if broker.broker_name not in told)
            if told or unanswered or gone:
                found.append(topic_from_wire(name, told, gone, unanswered))
        return found

    def route(self, topic: str) -> TopicRoute:
        """Return where the queues of a topic are, asked anew, and which brokers that carry it are away.

        Raises `TopicNotFound`, `TopicUnavailable`, `SystemBusy` and `Unavailable`.
        """
        return self._masters.route(check_topic(topic))
