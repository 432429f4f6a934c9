"""The options of simple consumers."""

from __future__ import annotations

from dataclasses import dataclass

from minimq.arguments import check_between, check_count
from minimq.options import check_above_zero
from minimq.receiving.consumer_options import invisible_ms
from minimq.transport.start_position import Start, start_position
from minimq_common.protocol_bounds import MAX_TAKEN
from minimq_common.security.credentials import CredentialsArgument

#: Enough that requests cost little beside messages, and few enough that others get some.
PREFETCH_MESSAGES = 4096


@dataclass(frozen=True, slots=True)
class SimpleOptions:
    """The arguments that a simple consumer was made with.

    Attributes:
        invisible_s: invisible duration: seconds for which a message that is received is in no other hand.
        max_tries: deliveries of a message, the first one included, after which it is a dead letter.
        start: where a new group begins.
        free_on_close: let others have what is not settled as soon as the consumer closes or dies.
        request_timeout_s: seconds for which a settle is tried, and that a broker may take to answer.
        prefetch_messages: maximum number of messages to take before they are asked for; 0 for none.
        credentials: as of `Cluster`.
    """

    invisible_s: float = 30.0
    max_tries: int = 16
    start: Start = "earliest"
    free_on_close: bool = True
    request_timeout_s: float = 10.0
    prefetch_messages: int = PREFETCH_MESSAGES
    credentials: CredentialsArgument | None = None

    def __post_init__(self) -> None:
        invisible_ms(self.invisible_s)
        check_count("max_tries", self.max_tries)
        check_between("prefetch_messages", self.prefetch_messages, 0, MAX_TAKEN)
        check_above_zero(self, but=("prefetch_messages",))
        start_position(self.start)

    @property
    def prefetch_limit(self) -> int:
        """The number of messages to take ahead at most: 0 if those of a process that ends were lost for a long time."""
        return self.prefetch_messages if self.free_on_close and self.max_tries > 1 else 0
