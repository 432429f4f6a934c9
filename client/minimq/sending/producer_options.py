"""The options of producers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict, get_args

from minimq.options import check_above_zero
from minimq_common.batch.compression import Compression
from minimq_common.errors import InvalidArgument
from minimq_common.security.credentials import CredentialsArgument

#: Upper limit of every broker, whatever its options: a batch is one frame on the wire.
_MAX_BYTES = 32 << 20
#: Limit of `batch_bytes`. Brokers accept 8 MiB by default, and keys and properties count as well.
_MAX_BATCH_BYTES = 4 << 20
#: Range of `delay_precision_s`.
_PRECISION_S = (0.001, 3600)

#: How batches are compressed, by name.
CompressionName = Literal["none", "zstd"]


class ProducerChanges(TypedDict, total=False):
    """Options of a producer as keyword arguments; see `ProducerOptions`."""

    send_timeout_s: float
    max_body_bytes: int
    batch_messages: int
    batch_bytes: int
    min_split_messages: int
    buffer_bytes: int
    delay_precision_s: float
    block_when_full: bool
    max_in_flight_requests: int
    close_timeout_s: float
    compression: CompressionName
    compress_above_bytes: int
    fault_avoidance: bool
    machine_rooms: Sequence[str]
    credentials: CredentialsArgument | None


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """Options of a producer.

    Attributes:
        send_timeout_s: seconds for all attempts of a message together, counted from the first attempt; retries go to
            other brokers where possible. The time in which a large batch makes progress on a slow connection does not
            count. The default is twice the time of a fail-over, so that a send outlasts one. The first
            send to a topic may wait as long again, before that, for a name server and a broker.
        max_body_bytes: largest body in bytes, at most 32 MiB; brokers have a limit of their own.
        batch_messages: most messages in one batch.
        batch_bytes: total size of bodies, in bytes, at which a batch is full; at most 4 MiB.
        min_split_messages: smallest batch, in messages, when a `send_many` that does not fill a batch, or single
            messages that have gathered, are divided among the queues of a topic. A larger number makes fewer batches.
        buffer_bytes: most memory, in bytes, for messages without a receipt. Approximate: a message takes its content,
            0.1 KiB in `send_many` or 0.5 KiB in any other send, and 64 to 256 bytes for each key and property.
        delay_precision_s: seconds by which a delayed message may be due later than asked, so that it can share a batch
            with others; it is never delivered earlier. With 0.001, only those of the same millisecond share one.
        block_when_full: wait for room in the buffer, or raise BufferFull.
        max_in_flight_requests: maximum number of requests in flight to one broker.
        close_timeout_s: seconds that `close` waits for messages in flight.
        compression: of batches, "none" or "zstd"; brokers store batches as they are, and consumers read both.
        compress_above_bytes: smaller batches are not compressed, nor are those that compression hardly shrinks.
        fault_avoidance: avoid brokers that fail or are slow for a while, as long as there are others. Messages
            that must go to one queue go there all the same.
        machine_rooms: near rooms; brokers are named ROOM@NAME. Others are used only if no near one is available.
        credentials: path of the credentials file of a user, or `Credentials`; by default the file that the environment
            variable MINIMQ_CREDENTIALS names. A `Cluster` has its own.
    """

    send_timeout_s: float = 6.0
    max_body_bytes: int = 4 << 20
    batch_messages: int = 4096
    batch_bytes: int = 1 << 20
    min_split_messages: int = 32
    buffer_bytes: int = 64 << 20
    delay_precision_s: float = 0.1
    block_when_full: bool = True
    max_in_flight_requests: int = 8
    close_timeout_s: float = 30.0
    compression: CompressionName = "none"
    compress_above_bytes: int = 4096
    fault_avoidance: bool = True
    machine_rooms: Sequence[str] = ()
    credentials: CredentialsArgument | None = None

    def __post_init__(self) -> None:
        check_above_zero(self)
        mosts = {"max_body_bytes": _MAX_BYTES, "batch_bytes": _MAX_BATCH_BYTES, "batch_messages": 1 << 20}
        for name, most in mosts.items():
            if getattr(self, name) > most:
                raise InvalidArgument(f"{name} is {getattr(self, name)}: it must be at most {most}")
        if not _PRECISION_S[0] <= self.delay_precision_s <= _PRECISION_S[1]:
            low, high = _PRECISION_S
            raise InvalidArgument(f"delay_precision_s is {self.delay_precision_s}: it must be {low} to {high}")
        choices = get_args(CompressionName)
        if self.compression not in choices:
            raise InvalidArgument(f"compression is {self.compression!r}: it must be one of {', '.join(choices)}")
        if isinstance(self.machine_rooms, str):
            raise InvalidArgument(f"machine_rooms is {self.machine_rooms!r}: give a sequence of names")

    @property
    def batch_compression(self) -> Compression | None:
        """The compression of batches; None for none."""
        return Compression(self.compress_above_bytes) if self.compression == "zstd" else None
