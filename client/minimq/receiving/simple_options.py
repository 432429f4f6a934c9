"""The options of simple consumers."""

from __future__ import annotations

from dataclasses import dataclass

from minimq.arguments import check_count
from minimq.receiving.consumer_options import invisible_ms
from minimq.transport.start_position import Start, start_position


@dataclass(frozen=True, slots=True)
class SimpleOptions:
    """The arguments that a simple consumer was made with.

    Attributes:
        invisible_s: invisible duration: seconds for which a message that is received is in no other hand.
        max_tries: consumption attempts after which a message is a dead letter.
        start: where a new group begins.
        free_on_close: let others have what is not settled as soon as the consumer closes or dies.
        request_timeout_s: seconds for which a settle is tried, and that a broker may take to answer.
    """

    invisible_s: float = 30.0
    max_tries: int = 16
    start: Start = "earliest"
    free_on_close: bool = True
    request_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        invisible_ms(self.invisible_s)
        check_count("max_tries", self.max_tries)
        start_position(self.start)
