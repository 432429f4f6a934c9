"""Topics that are made because a producer needs them."""

from __future__ import annotations

import copy
import threading
import time
from concurrent.futures import CancelledError, Future

from minimq.administration.failures import raise_failures
from minimq.administration.masters import Masters
from minimq.connection.client import ClusterClient
from minimq_common.errors import MiniMQError, TopicNotFound
from minimq_common.names import check_topic
from minimq_proto.v1 import broker_pb2

#: For so long, in seconds, brokers that make no topic of a name are not asked for it again.
_REFUSED_S = 1.0


class AutoCreate:
    """Asks brokers for topics that do not exist. Thread-safe; lives as long as the producer.

    Of the threads that want the same topic at the same time one asks, and the others wait for its answer. A refusal is
    remembered for a second, so that sends to a misspelt topic are no work for the brokers.

    Args:
        client: makes the calls. Its `timeout_s` is also how long to wait until all name servers show the topic.
    """

    def __init__(self, client: ClusterClient) -> None:
        self._masters = Masters(client)
        self._lock = threading.Lock()  # protects all below; never held while a call is made
        self._under_way: dict[str, Future[None]] = {}
        self._refusals: dict[str, tuple[float, TopicNotFound]] = {}  # each with the time at which it is forgotten

    def create(self, topic: str) -> bool:
        """Ask all masters at once, and return when the name servers show the topic where it is now.

        Each broker has its own say, and its own number of queues: some may make it while others do not. Many may ask
        for the same topic at the same time.

        Returns:
            Whether a broker made it for this call; False when all that may have it had it already, or when another
            thread has asked.

        Raises:
            TopicNotFound: no broker makes topics by itself; the text says how to create this one, and which option
                changes that.
            DeadlineExceeded: a name server did not show it in time. It has been made.
            SystemBusy: the name servers have just started and their brokers are not back yet.
            Unavailable: no name server or no master is reached.
            InvalidArgument: the name cannot be that of a topic.
            Closed: it was closed.
            MiniMQError: no broker has it, and one of them failed; the text says which.
        """
        check_topic(topic)
        while True:
            with self._lock:
                self._check(topic)
                asked = self._under_way.get(topic)
                if asked is None:
                    mine = self._under_way[topic] = Future[None]()
                    break
            try:
                asked.result()
            except CancelledError:
                continue  # who asked was interrupted
            except MiniMQError as error:
                raise copy.copy(error) from None  # each its own: a traceback holds what those who raise it hold
            return False
        try:
            made = self._ask(topic)
        except BaseException as error:
            self._end(topic, error)
            if isinstance(error, MiniMQError):
                mine.set_exception(copy.copy(error))
            else:
                mine.cancel()
            raise
        self._end(topic)
        mine.set_result(None)
        return made

    def _check(self, topic: str) -> None:
        """Raise what is known without asking."""
        self._masters.calls.check_open()
        until, refusal = self._refusals.get(topic, (0.0, None))
        if refusal is not None and time.monotonic() < until:
            raise copy.copy(refusal)

    def _ask(self, topic: str) -> bool:
        request = broker_pb2.CreateTopicRequest(topic=broker_pb2.Topic(topic=topic), if_not_exists=True, automatic=True)
        masters = self._masters.find(to_change=True)
        answers, failures = self._masters.calls.call_all(masters, lambda stub: stub.CreateTopic, request)
        if not answers:
            texts = {error.message if isinstance(error, TopicNotFound) else "" for error in failures.values()}
            if len(failures) == len(masters) and len(texts) == 1 and all(texts):
                raise TopicNotFound(*texts)
            # A broker that failed may have the option: what it says comes before the refusals.
            what = f"topic {topic} was not made automatically"
            raise_failures(what, failures, masters, "try again", lambda error: isinstance(error, TopicNotFound))
        self._masters.wait_until_shown({broker: answer.data_version for broker, answer in answers.items()})
        return any(answer.created for answer in answers.values())

    def _end(self, topic: str, error: BaseException | None = None) -> None:
        now = time.monotonic()
        with self._lock:
            del self._under_way[topic]
            self._refusals = {name: refusal for name, refusal in self._refusals.items() if refusal[0] > now}
            if isinstance(error, TopicNotFound):
                self._refusals[topic] = now + _REFUSED_S, error
