"""The options of consumers."""

from __future__ import annotations

from dataclasses import dataclass

from minimq.options import check_above_zero


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """How a consumer reads.

    Attributes:
        prefetch_messages: messages of one queue that may be fetched ahead.
        prefetch_bytes: bytes of one queue that may be fetched ahead.
        wait_s: seconds that a broker holds a pull while there is nothing to read.
        commit_interval_s: seconds between two automatic commits; 0 turns them off.
        rebalance_interval_s: seconds after which the allocation is looked at again though nothing was heard.
        heartbeat_interval_s: seconds between two signs of life to each broker.
        request_timeout_s: seconds that a call to a broker may take.
        drain_s: seconds after which a queue that another member was given leaves, though messages are in hand.
        retry_delay_s: seconds before a message that was not consumed is given to the listener again.
    """

    prefetch_messages: int = 100_000
    prefetch_bytes: int = 8 << 20
    wait_s: float = 15.0
    commit_interval_s: float = 5.0
    rebalance_interval_s: float = 20.0
    heartbeat_interval_s: float = 10.0
    request_timeout_s: float = 5.0
    drain_s: float = 30.0
    retry_delay_s: float = 1.0

    def __post_init__(self) -> None:
        check_above_zero(self, but="commit_interval_s")
