"""Topics that are made because a producer needs them."""

from __future__ import annotations

from minimq.administration.fan_out import FanOut, raise_failures
from minimq.administration.masters import Masters
from minimq.routes.nameserver_link import NameServerLinks
from minimq_common.errors import TopicNotFound
from minimq_common.names import check_topic
from minimq_proto.v1 import broker_pb2


class AutoCreate:
    """Asks brokers for a topic that does not exist. Thread-safe; it closes nothing of what it is given.

    Args:
        nameservers: connections to all name servers.
        calls: makes the calls to brokers.
        timeout_s: seconds to wait until all name servers show the topic.
    """

    def __init__(self, nameservers: NameServerLinks, calls: FanOut, timeout_s: float = 5.0) -> None:
        self._masters = Masters(nameservers, calls, timeout_s)

    def create(self, topic: str) -> bool:
        """Ask all masters at once, and return when the name servers show the topic where it is now.

        Each broker has its own say, and its own number of queues: some may make it while others do not. Many may ask
        for the same topic at the same time.

        Returns:
            Whether a broker made it now; False when all that may have it had it already.

        Raises:
            TopicNotFound: no broker makes topics by itself; the text says how to create this one, and which option
                changes that.
            DeadlineExceeded: a name server did not show it in time. It has been made.
            Unavailable: no name server or no master is reached.
            InvalidArgument: the name cannot be that of a topic.
            MiniMQError: no broker has it, and one of them failed; the text says which.
        """
        request = broker_pb2.CreateTopicRequest(
            topic=broker_pb2.Topic(topic=check_topic(topic)), if_not_exists=True, automatic=True
        )
        masters = self._masters.find()
        answers, failures = self._masters.calls.call_all(masters, lambda stub: stub.CreateTopic, request)
        if not answers:
            # A broker that failed may have the option: what it says comes before the refusals.
            ordered = dict(sorted(failures.items(), key=lambda item: isinstance(item[1], TopicNotFound)))
            raise_failures(f"topic {topic} was not made automatically", ordered, masters, "try again")
        self._masters.wait_until_shown(topic, {broker: answer.topic for broker, answer in answers.items()})
        return any(answer.created for answer in answers.values())
