"""Sends prepared batches, and commits transactions over several brokers. Used by the Spark sink."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Self

from minimq.admin.master_client import MasterClient, raise_failures
from minimq.connection.client import ClusterClient
from minimq.connection.cluster import Cluster
from minimq.connection.finalizers import ClosedByWith, Finalizer
from minimq.connection.retry_schedule import PAUSE_S
from minimq.features.transactions.decisions import Calls, CommitProtocol, Decision, StagedPart, Transaction
from minimq.sending.pending_batch import Records
from minimq.sending.producer_core import CLOSE_TIMEOUT_S, ProducerCore, after
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.receipt import BatchReceipt
from minimq_common.errors import (
    DeadlineExceeded,
    InvalidArgument,
    MinimqError,
    TopicNotFound,
    TransactionExpired,
    Unavailable,
)
from minimq_common.model import MessageQueue
from minimq_common.names import check_transaction
from minimq_common.security.credentials import CredentialsArgument
from minimq_common.wire.convert import from_wire, to_wire
from minimq_proto.v1 import staged_pb2

log = logging.getLogger(__name__)

#: Timeout of optional brokers; see `decisions.py`.
_OPTIONAL_TIMEOUT_S = 1.0


class RecordsSender:
    """Sends prepared batches. Thread-safe; a context manager. Cannot be used in a fork."""

    def __init__(
        self, nameserver: str | Sequence[str] | Cluster | None = None, options: ProducerOptions | None = None
    ) -> None:
        self._core = ProducerCore(nameserver, options or ProducerOptions(), ())
        self._finalizer = Finalizer(self, self._core.release)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close; after an error, do not wait for batches in flight."""
        with after(error):
            self.close(CLOSE_TIMEOUT_S if error is None else 0.0)

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """Return the queues over which keys are spread, sorted; including those of unavailable brokers."""
        return self._core.queues(topic)

    def key_queue(self, topic: str) -> Callable[[str], MessageQueue] | None:
        """Return the function from key to queue of a compacted topic; None for other topics. Raises as `queues`."""
        return self._core.key_queue(topic)

    def send(
        self,
        topic: str,
        queue: MessageQueue | None,
        records: Records,
        *,
        transaction: Transaction | None = None,
        may_move: bool = False,
    ) -> Future[BatchReceipt]:
        """Send records as one batch. Blocks only for room in the buffer.

        With `may_move`, another queue of the same broker takes the place of `queue` if that is removed meanwhile.
        """
        return self._core.send_records(topic, queue, records, transaction, may_move=may_move)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Wait for batches in flight and close. Raises `SendFailed` after the timeout. Idempotent."""
        self._finalizer.close(partial(self._core.close, timeout_s))


class TransactionCommitter(ClosedByWith):
    """Commits transactions whose batches were staged with `RecordsSender.send`. Thread-safe; a context manager."""

    def __init__(
        self,
        nameserver: str | Sequence[str] | Cluster | None = None,
        *,
        timeout_s: float = 5.0,
        max_wait_s: float = 60.0,
        credentials: CredentialsArgument | None = None,
    ) -> None:
        for option, value in (("timeout_s", timeout_s), ("max_wait_s", max_wait_s)):
            if value <= 0:
                raise InvalidArgument(f"{option} is {value}: it must be above 0")
        self._client = ClusterClient(nameserver, timeout_s, credentials=credentials)
        self._masters = MasterClient(self._client)
        self._max_wait_s = max_wait_s
        self._finalizer = Finalizer(self, self._client.close)

    def commit(
        self, transaction: Transaction, topics: Collection[str], parts: Sequence[StagedPart], *, decided: bool = False
    ) -> Decision:
        """Publish the staged batches at all brokers or at none; return the decision once readers see all of them.

        May be repeated by any process, with the same parts or with others that were staged since: of all attempts under
        one number, the first that is decided is published, and the others are dropped. Set `decided` if a broker
        rejected a staged batch with `TransactionEnded`: an earlier attempt is decided, and this call completes it.
        """
        if not topics and not parts:
            raise InvalidArgument(f"transaction {transaction} has written nothing: no topic and no part is given")
        attempt = _Attempt(CommitProtocol(transaction, parts, decided=decided), topics, self._masters)
        give_up = time.monotonic() + self._max_wait_s
        while not attempt.protocol.finished:
            if attempt.go_on():
                give_up = time.monotonic() + self._max_wait_s
            elif time.monotonic() >= give_up:
                raise attempt.timeout_error(self._max_wait_s)
            else:
                self._client.pause(PAUSE_S)
        assert attempt.protocol.decision is not None
        return attempt.protocol.decision

    def latest(self, name: str) -> int | None:
        """Return the highest decided number of a name at all brokers that have a master; None if there is none."""
        addresses = {broker.broker_name: broker.master for broker in self._masters.brokers() if broker.master}
        request = staged_pb2.CommitTransactionRequest(name=check_transaction(name))
        answers, failures = self._masters.calls.call_all(
            addresses, lambda stub: stub.of(staged_pb2).CommitTransaction, request
        )
        raise_failures(f"the transactions of {name!r} are not known", failures, addresses, "try again")
        return max((answer.decision.number for answer in answers.values() if answer.HasField("decision")), default=None)

    def close(self) -> None:
        """Close all connections; running and later calls raise `Closed`. Idempotent."""
        self._finalizer.close(self._client.close)


class _Attempt:
    """One call of `commit`."""

    def __init__(self, protocol: CommitProtocol, topics: Collection[str], masters: MasterClient) -> None:
        self.protocol = protocol
        self._topics = sorted(topics)
        self._masters = masters
        self._made: Calls | None = None
        #: Why a broker gave no answer, by broker name; "" stands for the name servers.
        self._reasons: dict[str, MinimqError] = {}
        #: Bytes that a broker still had to publish, as it last reported.
        self._left: dict[str, int] = {}

    def go_on(self) -> bool:
        """Make the next calls; return whether there was progress."""
        try:
            addresses = self._look()
        except MinimqError as error:
            if not error.retriable and not isinstance(error, TopicNotFound):  # all brokers of a topic may be offline
                raise
            self._reasons[""] = error
            return False
        self._reasons.pop("", None)
        before, calls = self._made, self.protocol.calls()
        self._made = calls
        if calls.decision is not None:
            return self._commit(calls.broker_names, calls.decision, addresses)
        return self._describe(calls.broker_names, addresses) and calls != before  # the same answers are no progress

    def timeout_error(self, max_wait_s: float) -> MinimqError:
        protocol, waited = self.protocol, f"within {max_wait_s:g} s"
        reasons = {
            name: f"broker {name}: {error.message}" if name else error.message for name, error in self._reasons.items()
        }
        waited_for = [reason for name, reason in reasons.items() if not name or name in protocol.needed]
        if protocol.decision is not None:
            left = "it is decided, and not published there yet"
        elif protocol.decided:
            left = "it is decided, as a broker reported, and no broker that answers knows the decision"
            waited_for = waited_for or list(reasons.values())
        else:
            left = "it is not known whether it is decided: only these brokers know"
        text = f"transaction {protocol.transaction} was not ended {waited}"
        if not waited_for:
            return Unavailable(f"{text}: {left}")
        return Unavailable(f"{text} ({'; '.join(waited_for)}): {left}; make sure that they run")

    def _look(self) -> dict[str, str]:
        undecided = self.protocol.decision is None
        known = self._masters.brokers(settled=undecided)
        addresses = {broker.broker_name: broker.master for broker in known if broker.master is not None}
        if undecided:
            routes = [self._masters.route(topic) for topic in self._topics]
            self.protocol.see({queues.broker_name for route in routes for queues in route.queues}, addresses)
        return addresses

    def _describe(self, names: Collection[str], addresses: Mapping[str, str]) -> bool:
        needed = self.protocol.needed & {*names}
        asked = self._reached(names, addresses)
        transaction = self.protocol.transaction
        requests = {
            name: staged_pb2.CommitTransactionRequest(
                name=transaction.name,
                number=transaction.number,
                batches=[to_wire(staged_pb2.StagedPart, part) for part in self.protocol.staged_at(name)],
            )
            for name in names
        }
        answers: dict[str, staged_pb2.CommitTransactionResponse] = {}
        failures: dict[str, MinimqError] = {}
        client = self._masters.calls
        for timeout_s, group in (
            (client.timeout_s, needed),
            (min(client.timeout_s, _OPTIONAL_TIMEOUT_S), {*names} - needed),
        ):
            of_group = {name: address for name, address in asked.items() if name in group}
            answered, failed = client.call_all(
                of_group, lambda stub: stub.of(staged_pb2).CommitTransaction, requests, timeout_s=timeout_s
            )
            answers |= answered
            failures |= failed
        for name, error in failures.items():
            self.protocol.failed(name)
            if name in needed:
                self._wait_for(name, error)
            else:
                self._reasons[name] = error
        for name, answer in answers.items():
            self._reasons.pop(name, None)
            latest = from_wire(Decision, answer.decision) if answer.HasField("decision") else None
            self.protocol.described(name, latest, answer.missing_batches)
        return bool(answers) or not failures.keys() <= needed

    def _commit(self, names: Collection[str], decision: Decision, addresses: Mapping[str, str]) -> bool:
        protocol = self.protocol
        asked = self._reached(names, addresses)
        request = staged_pb2.CommitTransactionRequest(
            name=protocol.transaction.name, decision=to_wire(staged_pb2.Decision, decision)
        )
        answers, failures = self._masters.calls.call_all(
            asked, lambda stub: stub.of(staged_pb2).CommitTransaction, request
        )
        further = bool(answers)
        for name, answer in answers.items():
            self._reasons.pop(name, None)
            protocol.committed(name, from_wire(Decision, answer.decision))
        for name, error in failures.items():
            if isinstance(error, TransactionExpired):
                self._expired(name, decision, error)
                further = True
                continue
            self._wait_for(name, error)
            further |= isinstance(error, DeadlineExceeded) and self._is_publishing(name, asked[name])
        return further

    def _reached(self, names: Iterable[str], addresses: Mapping[str, str]) -> dict[str, str]:
        reached = {}
        for name in names:
            if name in addresses:
                reached[name] = addresses[name]
            else:
                self._reasons[name] = Unavailable("no name server knows a master of it")
        return reached

    def _wait_for(self, name: str, error: MinimqError) -> None:
        if not error.retriable:
            raise error.with_message(f"transaction {self.protocol.transaction}: broker {name}: {error.message}")
        self._reasons[name] = error

    def _expired(self, name: str, decision: Decision, error: TransactionExpired) -> None:
        transaction = self.protocol.transaction
        if decision.number < transaction.number:  # its committer got an error then
            log.warning(
                "transactions: an earlier one stays without a part name=%s: %s", transaction.name, error.message
            )
            self.protocol.cannot_catch_up(name)
        elif self.protocol.decision is None:
            raise TransactionExpired(f"transaction {transaction} is not decided: {error.message}")
        else:
            raise TransactionExpired(
                f"transaction {transaction} is decided, and broker {name} has lost its part of it: {error.message}"
            )

    def _is_publishing(self, name: str, address: str) -> bool:
        request = staged_pb2.CommitTransactionRequest(name=self.protocol.transaction.name)
        answers, _ = self._masters.calls.call_all(
            {name: address}, lambda stub: stub.of(staged_pb2).CommitTransaction, request
        )
        if name not in answers:
            return False
        before, self._left[name] = self._left.get(name), answers[name].staged_bytes
        return before is None or self._left[name] < before
