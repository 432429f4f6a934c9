"""The same call to many brokers at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from minimq.transport.broker_link import BrokerLinks
from minimq_common.errors import MiniMQError, NotDrained, Unavailable
from minimq_proto.v1.broker_pb2_grpc import BrokerStub

Key = TypeVar("Key", bound=Hashable)
Response = TypeVar("Response")

#: A broker that is not reached is tried again for this long: one that has just come back needs a moment.
_RECONNECT_S = 1.5
_PAUSE_S = 0.05
_PARALLEL_CALLS = 16


class FanOut:
    """Calls brokers, several at a time. Thread-safe.

    Args:
        timeout_s: seconds that one call may take.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._links = BrokerLinks()
        self._closed = threading.Event()

    def call(self, address: str, method: Callable[[BrokerStub], Callable[..., Response]], request: object) -> Response:
        """Return the answer of one broker.

        Args:
            address: HOST:PORT.
            method: picks the method of a stub.
            request: of the call, which must be safe to repeat.

        Raises:
            MiniMQError: what the broker refused with, or `Unavailable`, `DeadlineExceeded` or `Closed`.
        """
        link = self._links.to(address)
        give_up = time.monotonic() + min(_RECONNECT_S, self._timeout_s)
        while True:
            try:
                return link.call(method(link.stub), request, self._timeout_s)
            except Unavailable:
                if time.monotonic() >= give_up or self._closed.wait(_PAUSE_S):
                    raise

    def call_all(
        self, addresses: Mapping[Key, str], method: Callable[[BrokerStub], Callable[..., Response]], request: object
    ) -> tuple[dict[Key, Response], dict[Key, MiniMQError]]:
        """Return the answers and the failures by the keys of the addresses, in the order of the keys."""
        return self.call_each(addresses, method, dict.fromkeys(addresses, request))

    def call_each(
        self,
        addresses: Mapping[Key, str],
        method: Callable[[BrokerStub], Callable[..., Response]],
        requests: Mapping[Key, object],
    ) -> tuple[dict[Key, Response], dict[Key, MiniMQError]]:
        """Do as `call_all` does, with a request of its own for each key that has one; the others are not called."""
        answers: dict[Key, Response] = {}
        failures: dict[Key, MiniMQError] = {}
        if not requests:
            return answers, failures
        pool = ThreadPoolExecutor(min(len(requests), _PARALLEL_CALLS), "minimq-admin")
        try:
            futures = {
                key: pool.submit(self.call, address, method, requests[key])
                for key, address in addresses.items()
                if key in requests
            }
            for key, future in futures.items():
                try:
                    answers[key] = future.result()
                except MiniMQError as error:
                    failures[key] = error
        finally:
            # All is done, unless Ctrl-C came: that does not wait for brokers.
            pool.shutdown(wait=False, cancel_futures=True)
        return answers, failures

    def close(self) -> None:
        """End all connections. Idempotent."""
        self._closed.set()
        self._links.close()


def lasting_first(error: MiniMQError) -> tuple[bool, bool]:
    """Order errors: those that will not go away by themselves come first, then queues that have to be read."""
    return error.retriable, not isinstance(error, NotDrained)


def merge_failures(
    failures: Mapping[str, MiniMQError], order: Callable[[MiniMQError], Any] = lasting_first
) -> MiniMQError:
    """Return one error for all failures, by broker; class and time to wait are those of the first in order."""
    ordered = sorted(failures.items(), key=lambda item: order(item[1]))
    first = ordered[0][1]
    if len({error.message for error in failures.values()}) == 1:
        text = f"{', '.join(broker for broker, _ in ordered)}: {first.message}"
    else:
        text = "; ".join(f"{broker}: {error.message}" for broker, error in ordered)
    return first.with_message(text)


def raise_failures(
    what: str,
    failures: Mapping[str, MiniMQError],
    asked: Mapping[str, str],
    remedy: str,
    order: Callable[[MiniMQError], Any] = lasting_first,
) -> None:
    """Raise one error for all failures, if there are any, merged as `merge_failures` does.

    Args:
        what: the task that failed: "topic orders was not created".
        failures: by broker name.
        asked: addresses of all that were asked, by broker name.
        remedy: what to do about it.
        order: key by which they are listed.
    """
    if not failures:
        return
    merged = merge_failures({f"{broker} ({asked[broker]})": error for broker, error in failures.items()}, order)
    texts = {error.message for error in failures.values()}
    if len(failures) == len(asked) and len(texts) == 1:
        text = f"{what}: {texts.pop()}"
    else:
        text = f"{what} on {len(failures)} of {len(asked)} brokers: {merged.message}; {remedy}"
    raise merged.with_message(text)
