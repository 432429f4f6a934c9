"""The part of `Admin` that concerns single messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from minimq.administration.masters import Masters
from minimq_common.errors import InvalidArgument, OffsetOutOfRange
from minimq_common.names import check_topic

if TYPE_CHECKING:  # other administration does not need to load receiving
    from minimq.finding.found_messages import FoundMessages
    from minimq.finding.message_address import MessageAddress
    from minimq.finding.message_search import Progress
    from minimq.finding.message_trace import MessageTrace
    from minimq.finding.search_range import SearchRange
    from minimq.receiving.received import ReceivedMessage


class MessageAdmin:
    """Shows single messages, and finds them; users have it as `Admin`. Nothing is committed, and no group is needed."""

    def __init__(self, masters: Masters) -> None:
        self._masters = masters

    def message_at(self, address: str | MessageAddress) -> ReceivedMessage:
        """Return the message that is stored at an address.

        Args:
            address: such as "orders/broker-a/3@10423".

        Raises:
            InvalidArgument: it is not an address.
            OffsetOutOfRange: no message is stored there.
            DamagedMessages: its batch is damaged.
            TopicNotFound, QueueNotFound: there is no such queue.
            MiniMQError: its broker is not known or did not answer.
        """
        from minimq.finding.message_address import parse_address  # as above
        from minimq.receiving.range_reader import RangeOptions, RangeReader  # as above

        found = parse_address(address)
        queue, offset, client = found.queue, found.offset, self._masters.calls
        reader = RangeReader(client.cluster, RangeOptions(patience_s=client.timeout_s))
        try:
            for batch in reader.read(queue, offset, offset + 1):
                for message in batch.messages(offset)[:1]:
                    if message.queue_offset == offset:
                        return message
        finally:
            reader.close()
        raise OffsetOutOfRange(f"the message at offset {offset} of queue {queue} is gone: compaction has removed it")

    def find_messages(
        self,
        topic: str,
        *,
        key: str | None = None,
        message_id: str | None = None,
        progress: Progress | None = None,
        **within: Unpack[SearchRange],
    ) -> FoundMessages:
        """Return the messages of a topic with a key, or with an id.

        The brokers look into their stored batches, a short time for each call, and serve others meanwhile. What they
        find is opened and compared here, so every message that is returned has the key or the id.

        Args:
            topic: its name.
            key: one of the keys of the messages, as a whole.
            message_id: instead of a key: the id, as a receipt has it.
            progress: called with the number of offsets that were looked at, and of those in the range so far as they
                are known.
            **within: the bounds of the search; see `SearchRange`.

        Returns:
            The messages, and what could not be looked at.

        Raises:
            InvalidArgument: an argument breaks a rule.
            AccessDenied: you may not read the topic.
            TopicNotFound, TopicUnavailable: it does not exist, or none of its brokers is there.
            MiniMQError: no name server answers.
        """
        from minimq.finding.criterion import by_id, by_key  # as above
        from minimq.finding.message_search import MessageSearch  # as above
        from minimq.finding.search_range import bounds_of  # as above

        if (key is None) == (message_id is None):
            raise InvalidArgument("give a key or a message_id, one of them")
        criterion = by_id(message_id) if message_id is not None else by_key(key)
        client = self._masters.calls
        search = MessageSearch(client, criterion, bounds_of(within, client.timeout_s), progress)
        route = self._masters.route(check_topic(topic))
        return search.run(route.read_queues(), route.away)

    def trace_message(
        self,
        message: str | MessageAddress,
        *,
        topic: str | None = None,
        progress: Progress | None = None,
        **within: Unpack[SearchRange],
    ) -> MessageTrace:
        """Return where a message is stored, and what each group has done with it.

        It is worked out from what the brokers know at this moment; nothing is recorded for it.

        Args:
            message: its address, which is the fastest, or its id.
            topic: in which an id is looked for; by default in all that you may read.
            progress: as of `find_messages`.
            **within: the bounds of the search for an id; see `SearchRange`.

        Raises:
            InvalidArgument: it is neither an address nor an id, or another argument breaks a rule.
            OffsetOutOfRange: no message is stored at the address.
            MiniMQError: as of `message_at` and `find_messages`.
        """
        from minimq.finding.criterion import is_id  # as above
        from minimq.finding.search_range import bounds_of  # as above
        from minimq.finding.tracer import Tracer  # as above

        tracer = Tracer(self._masters, bounds_of(within, self._masters.calls.timeout_s), progress)
        if is_id(message):
            return tracer.trace_id(str(message), None if topic is None else check_topic(topic))
        return tracer.trace(self.message_at(message))
