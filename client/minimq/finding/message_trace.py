"""The fate of one message: where it is stored, and what groups have done with it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from minimq.administration.delayed_admin import DelayedMessages
from minimq.finding.found_messages import UnreadOffsets
from minimq.finding.message_address import MessageAddress
from minimq.receiving.received import ReceivedMessage
from minimq_common.model import AwayBroker


class TraceState(Enum):
    """The state of a message for one group."""

    #: The group has not got to it yet; a member may have received it and not committed.
    WAITING = "waiting"
    #: The group has committed an offset behind it.
    READ = "read"
    #: Of groups that receive messages one by one: a consumer has it.
    IN_FLIGHT = "in flight"
    #: It was released, or not acknowledged in time, and will be redelivered.
    RETURNED = "returned"
    #: It was acknowledged.
    SETTLED = "settled"
    #: It failed, and its copy in the retry topic of the group waits for another try.
    RETRYING = "retrying"
    #: It was given up, and is an open dead letter of the group.
    DEAD = "dead"
    #: It was given up, and the dead letter was resent or dropped.
    DEAD_SETTLED = "dead, settled"


@dataclass(frozen=True, slots=True)
class GroupTrace:
    """The fate of a message in one group.

    Attributes:
        group: the consumer group.
        state: how it is.
        client_id: the consumer that has it, or that reads its queue; None without one.
        tries: how often it was delivered, as far as that is counted: in groups that receive messages one by one, and
            from the first failure on in others.
        until: until when it is in flight, or from when on it is redelivered; None if there is no such time.
        copy: where its dead letter, or its copy that waits for another try, is stored.
    """

    group: str
    state: TraceState
    client_id: str | None = None
    tries: int = 0
    until: datetime | None = None
    copy: MessageAddress | None = None


@dataclass(frozen=True, slots=True)
class HalfTrace:
    """The open transaction of a message that nobody can read yet.

    Attributes:
        producer_group: which was asked about it.
        number: of the transaction.
        checks: how often somebody was asked.
        is_undecided: nobody is asked any more: it is to be decided by hand.
    """

    producer_group: str
    number: int
    checks: int
    is_undecided: bool


@dataclass(frozen=True, slots=True)
class MessageTrace:
    """The fate of a message.

    Attributes:
        message_id: its id.
        message: as it is stored in its queue; None if it is in none, or was not found.
        groups: what each group that reads its topic has done with it, sorted by name; those that you may describe.
        due: the delayed batch in which it waits until it is due; None if it does not.
        recalled: the delayed batch with which it was recalled; None if it was not, or would be due by now.
        half: its open transaction; None if it has none.
        unread: offsets at which the message, or a copy of it, could not be looked for.
        away: brokers that are away: it may be there.
        from_slaves: brokers of which a slave has answered, which may not know the latest.
    """

    message_id: str
    message: ReceivedMessage | None = None
    groups: tuple[GroupTrace, ...] = ()
    due: DelayedMessages | None = None
    recalled: DelayedMessages | None = None
    half: HalfTrace | None = None
    unread: tuple[UnreadOffsets, ...] = ()
    away: tuple[AwayBroker, ...] = ()
    from_slaves: tuple[str, ...] = ()

    @property
    def address(self) -> MessageAddress | None:
        """Where the message is stored; None if it is in no queue."""
        return None if self.message is None else MessageAddress(self.message.queue, self.message.queue_offset)

    @property
    def is_known(self) -> bool:
        """True if the message was found: stored, delayed, recalled, or half."""
        return any(found is not None for found in (self.message, self.due, self.recalled, self.half))

    @property
    def is_complete(self) -> bool:
        """True if nothing that is stored was left out."""
        return not (self.unread or self.away or self.from_slaves)
