"""The face of a consumer: facts that all kinds of them tell."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from minimq.receiving.consumer import Consumer
from minimq_common.model import MessageQueue


class ReaderFacts(Protocol):
    """The facts of whoever does the work of a consumer; `ConsumerFace` says what they are."""

    @property
    def group(self) -> str: ...  # noqa: D102

    @property
    def client_id(self) -> str: ...  # noqa: D102

    @property
    def assignment(self) -> list[MessageQueue]: ...  # noqa: D102

    @property
    def missed_messages(self) -> int: ...  # noqa: D102

    @property
    def filtered_messages(self) -> int: ...  # noqa: D102

    def state_saved(self, queues: Iterable[MessageQueue]) -> None: ...  # noqa: D102


class ConsumerFace:
    """The facts of the consumer that has the work done. Base of what users have."""

    _reader: ReaderFacts

    @property
    def group(self) -> str:
        """The consumer group; empty for a reader that has none, and so neither leases nor commits."""
        return self._reader.group

    @property
    def client_id(self) -> str:
        """Name of this consumer among all clients."""
        return self._reader.client_id

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are this consumer's now, sorted."""
        return self._reader.assignment

    @property
    def missed_messages(self) -> int:
        """Number of messages it has passed over, since they were deleted before their turn; see `offset_reset`."""
        return self._reader.missed_messages

    @property
    def filtered_messages(self) -> int:
        """Number of messages that were read but filtered out."""
        return self._reader.filtered_messages

    def state_saved(self, queues: Iterable[MessageQueue]) -> None:  # noqa: D102 - below
        self._reader.state_saved(queues)

    state_saved.__doc__ = Consumer.state_saved.__doc__
