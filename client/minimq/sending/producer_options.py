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

#: How batches are compressed, by name.
CompressionName = Literal["none", "zstd"]


class ProducerChanges(TypedDict, total=False):
    """Options of a producer as keyword arguments; see `ProducerOptions`."""

    send_timeout_s: float
    max_body_bytes: int
    batch_messages: int
    batch_bytes: int
    buffer_bytes: int
    block_when_full: bool
    max_in_flight_requests: int
    compression: CompressionName
    fault_avoidance: bool
    machine_rooms: Sequence[str]
    reply_topic: str | None
    credentials: CredentialsArgument | None


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """Options of a producer, given by name. The defaults suit most programs; each option names the reason to change it.

    Attributes:
        send_timeout_s: seconds for all attempts of a message together, counted from the first attempt; retries go to
            other brokers where possible. The time in which a large batch makes progress on a slow connection does not
            count. The default is twice the time of a fail-over, so that a send outlasts one. The first send to a topic
            may wait as long again, before that, for a name server and a broker. Lower it if a caller cannot wait that
            long; raise it if messages must outlast a restart of servers.
        max_body_bytes: largest body in bytes, at most 32 MiB; brokers have a limit of their own. Raise it for larger
            messages.
        batch_messages: most messages in one batch. Lower it if a few very small messages must not share a queue.
        batch_bytes: total size of bodies, in bytes, at which a batch is full; at most 4 MiB. Lower it if a proxy limits
            requests, or to save memory of consumers with many queues.
        buffer_bytes: most memory, in bytes, for messages without a receipt. Approximate: a message takes its content,
            0.1 KiB in `send_many` or 0.5 KiB in any other send, and 64 to 256 bytes for each key and property. Raise it
            to send on through longer outages; lower it where memory is scarce.
        block_when_full: wait for room in the buffer, or raise BufferFull. Turn it off if the caller must not wait, as
            on an event loop.
        max_in_flight_requests: maximum number of requests in flight to one broker. Raise it for many recallable
            messages, or on connections with a long round trip.
        compression: of batches, "none" or "zstd"; brokers store batches as they are, and consumers read both. Choose
            "zstd" if network or disk is the limit, and bodies are not compressed yet.
        fault_avoidance: avoid brokers that fail or are slow for a while, as long as there are others. Messages
            that must go to one queue go there all the same. Turn it off if an even spread matters more than latency.
        machine_rooms: near rooms; brokers are named ROOM@NAME. Others are used only if no near one is available. Set it
            if brokers stand in several rooms.
        reply_topic: the topic to which replies to requests go; by default, one that all share. Set it if other users
            must not be able to read the replies; see docs/security.md.
        credentials: path of the credentials file of a user, or `Credentials`; by default the file that the environment
            variable MINIMQ_CREDENTIALS names. A `Cluster` has its own. Set it if one process acts as several users.
    """

    send_timeout_s: float = 6.0
    max_body_bytes: int = 4 << 20
    batch_messages: int = 4096
    batch_bytes: int = 1 << 20
    buffer_bytes: int = 64 << 20
    block_when_full: bool = True
    max_in_flight_requests: int = 8
    compression: CompressionName = "none"
    fault_avoidance: bool = True
    machine_rooms: Sequence[str] = ()
    reply_topic: str | None = None
    credentials: CredentialsArgument | None = None

    def __post_init__(self) -> None:
        check_above_zero(self)
        mosts = {"max_body_bytes": _MAX_BYTES, "batch_bytes": _MAX_BATCH_BYTES, "batch_messages": 1 << 20}
        for name, most in mosts.items():
            if getattr(self, name) > most:
                raise InvalidArgument(f"{name} is {getattr(self, name)}: it must be at most {most}")
        choices = get_args(CompressionName)
        if self.compression not in choices:
            raise InvalidArgument(f"compression is {self.compression!r}: it must be one of {', '.join(choices)}")
        if isinstance(self.machine_rooms, str):
            raise InvalidArgument(f"machine_rooms is {self.machine_rooms!r}: give a sequence of names")

    @property
    def batch_compression(self) -> Compression | None:
        """The compression of batches; None for none."""
        return Compression() if self.compression == "zstd" else None
