"""The queues that a consumer reads for its group, as its group member sees them."""

from __future__ import annotations

from collections.abc import Sequence

from minimq.receiving.fetcher import Fetcher
from minimq.receiving.in_hand import InHand
from minimq.receiving.member_state import Grant
from minimq_common.errors import MiniMQError
from minimq_common.model import MessageQueue


class GroupQueues:
    """The `QueueOwner` of a consumer: hands what the member says to the fetcher. Called by the member's thread.

    Args:
        fetcher: reads the queues.
    """

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher

    def granted(self, queue: MessageQueue, grant: Grant) -> None:
        """Begin to read a queue, or go on where it was read before the lease had to be renewed."""
        if not self._fetcher.renew(queue, grant):
            self._fetcher.start(queue, grant)

    def revoked(self, queues: Sequence[MessageQueue]) -> None:
        """Hand out nothing more of queues that others shall have."""
        self._fetcher.leave(queues)

    def lost(self, queues: Sequence[MessageQueue]) -> None:
        """Read queues no more that were taken away."""
        self._fetcher.lose(queues)

    def trusted(self, broker_name: str, until: float) -> None:
        """Rely on the leases of a broker until then."""
        self._fetcher.trust(broker_name, until)

    def doubted(self, queue: MessageQueue, until: float) -> None:
        """Hand nothing out of a queue after that time until it is granted again."""
        self._fetcher.doubt(queue, until)

    def refused(self, error: MiniMQError | None) -> None:
        """Tell the user again and again why the consumer cannot be part of its group, until it is."""
        self._fetcher.refuse(error)

    def failed(self, error: MiniMQError) -> None:
        """Tell the user what went wrong."""
        self._fetcher.fail(error)

    def tick(self) -> None:
        """Try failed pulls again."""
        self._fetcher.tick()


class ListenerQueues(GroupQueues):
    """The queues of a consumer whose listener has messages in hand.

    Args:
        fetcher: reads the queues.
        in_hand: keeps account of the messages.
    """

    def __init__(self, fetcher: Fetcher, in_hand: InHand) -> None:
        super().__init__(fetcher)
        self._in_hand = in_hand

    def granted(self, queue: MessageQueue, grant: Grant) -> None:
        """Begin to read a queue, or go on where it was read before the lease had to be renewed."""
        if not self._fetcher.renew(queue, grant):
            self._fetcher.lose([queue])
            self._in_hand.start(queue, grant.offset)
            self._fetcher.wake()  # the dispatcher has to know of the queue before it gets the first message
            self._fetcher.start(queue, grant)

    def lost(self, queues: Sequence[MessageQueue]) -> None:
        """Read queues no more that were taken away."""
        self._in_hand.drop(queues)
        super().lost(queues)
