"""Automatic creation of topics for producers."""

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

#: Seconds for which a refusal of brokers to create a topic is remembered.
_REFUSED_S = 1.0


class AutoCreate:
    """Requests missing topics from brokers. Thread-safe; lives as long as the producer.

    If several threads need the same topic at the same time, one makes the request and the others wait for its result. A
    refusal is remembered for a second, so that sends to a misspelt topic do not burden the brokers.
    """

    def __init__(self, client: ClusterClient) -> None:
        self._masters = Masters(client)
        self._lock = threading.Lock()  # protects everything below; never held during a call
        self._under_way: dict[str, Future[None]] = {}
        self._refusals: dict[str, tuple[float, TopicNotFound]] = {}  # each with its expiry time

    def create(self, topic: str) -> bool:
        """Request the topic from all masters in parallel, and return when the name servers show it.

        Each broker decides by itself, with its own number of queues: some may create the topic while others do not.
        Several clients may request the same topic at the same time.
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
                continue  # the requesting thread was interrupted
            except MiniMQError as error:
                raise copy.copy(error) from None  # each thread gets its own: a traceback keeps frames alive
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
            # A broker that failed may have the option: its error comes before refusals.
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
