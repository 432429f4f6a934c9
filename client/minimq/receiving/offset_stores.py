"""Where consumers record how far they are: at the brokers, or in a file of their own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from minimq.receiving.queue_decisions import Commit
from minimq.transport.broker_link import BrokerLinks
from minimq_common.errors import MiniMQError
from minimq_common.model import MessageQueue
from minimq_proto.v1 import broker_pb2

#: Offsets that one call records: a tenth of what brokers take.
_AT_ONCE = 1_000


class OffsetStore(Protocol):
    """Records offsets. Thread-safe."""

    def save(self, commits: Sequence[Commit]) -> Mapping[MessageQueue, MiniMQError]:
        """Record offsets, as many as possible, and wait until they are on disk.

        Returns:
            What could not be recorded, with the reason.
        """


class BrokerOffsets:
    """The offsets of a group: each at the broker of its queue. Thread-safe.

    Args:
        links: connections to brokers.
        address_of: where the broker of a queue is that is read without a lease; raises `Unavailable`.
        group: the group.
        client_id: in whose name leases are held.
        timeout_s: for one call.
    """

    def __init__(
        self,
        links: BrokerLinks,
        address_of: Callable[[MessageQueue], str],
        group: str,
        client_id: str,
        timeout_s: float,
    ) -> None:
        self._links = links
        self._address_of = address_of
        self._group = group
        self._client_id = client_id
        self._timeout_s = timeout_s

    def save(self, commits: Sequence[Commit]) -> Mapping[MessageQueue, MiniMQError]:
        """Record offsets; see `OffsetStore.save`."""
        failures: dict[MessageQueue, MiniMQError] = {}
        calls: defaultdict[tuple[str, bool, bool], list[Commit]] = defaultdict(list)
        for commit in commits:
            try:
                address = commit.address or self._address_of(commit.queue)
                calls[address, commit.epoch > 0, commit.sought].append(commit)
            except MiniMQError as error:
                failures[commit.queue] = error
        parts = [
            (address, together[start : start + _AT_ONCE])
            for (address, _, _), together in calls.items()
            for start in range(0, len(together), _AT_ONCE)
        ]
        return failures | self._save_each(parts)

    def _save_each(self, parts: Sequence[tuple[str, Sequence[Commit]]]) -> dict[MessageQueue, MiniMQError]:
        """Record the parts, each at one broker, all at the same time: each waits for a disk."""
        failures: dict[MessageQueue, MiniMQError] = {}
        single: list[tuple[str, Sequence[Commit]]] = []
        begun = [(address, commits, self._begin(address, commits)) for address, commits in parts]
        for address, commits, answer in begun:
            try:
                answer()
            except MiniMQError as error:
                if len(commits) == 1 or error.retriable:
                    failures |= dict.fromkeys((commit.queue for commit in commits), error)
                else:  # it takes all or none; those queues that were not lost or deleted shall not suffer for others
                    single += [(address, [commit]) for commit in commits]
        return failures | self._save_each(single) if single else failures

    def _begin(self, address: str, commits: Sequence[Commit]) -> Callable[[], broker_pb2.CommitOffsetsResponse]:
        request = broker_pb2.CommitOffsetsRequest(
            group=self._group,
            # In its name a commit needs the lease, so a former owner is refused.
            client_id=self._client_id if commits[0].epoch else "",
            offsets=[
                broker_pb2.QueueOffset(
                    topic=commit.queue.topic,
                    queue_id=commit.queue.queue_id,
                    offset=commit.offset,
                    epoch=commit.epoch,
                    term=commit.term,
                )
                for commit in commits
            ],
            force=commits[0].sought,
        )
        link = self._links.to(address)
        return link.begin(link.stub.CommitOffsets, request, self._timeout_s)
