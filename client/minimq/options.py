"""The options of producers and consumers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from minimq.latency_table import DEFAULT_LATENCY_TABLE, latency_table
from minimq_common.compression import Compression
from minimq_common.errors import InvalidArgument
from minimq_common.names import check_address

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

#: What a command or a program uses that was told no name server.
DEFAULT_NAMESERVER = "127.0.0.1:9876"

#: How batches are compressed, by name.
CompressionName = Literal["none", "zstd"]

Options = TypeVar("Options", bound="DataclassInstance")


def nameserver_addresses(nameserver: str | Sequence[str]) -> tuple[str, ...]:
    """Return the addresses in "HOST:PORT[,HOST:PORT]" or in a sequence. Raises `InvalidArgument`."""
    parts = nameserver.split(",") if isinstance(nameserver, str) else nameserver
    addresses = tuple(check_address(part.strip()) for part in parts if part.strip())
    if not addresses:
        raise InvalidArgument("no name server is given: write HOST:PORT")
    return addresses


def with_changes(options: Options, changes: Mapping[str, Any]) -> Options:
    """Return options with single ones changed by name. Raises `InvalidArgument`."""
    names = [field.name for field in dataclasses.fields(options)]
    unknown = sorted(changes.keys() - set(names))
    if unknown:
        raise InvalidArgument(f"unknown option {', '.join(unknown)}: {type(options).__name__} has {', '.join(names)}")
    return dataclasses.replace(options, **changes)


def check_above_zero(options: DataclassInstance, *, but: str = "") -> None:
    """Raise `InvalidArgument` when a number among options is not above 0; that of one name may be 0."""
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        # A switch is no number, though Python thinks so.
        if isinstance(field.default, bool) or not isinstance(field.default, int | float):
            continue
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise InvalidArgument(f"{field.name} is {value!r}: it must be a number")
        if value > 0 or (value == 0 and field.name == but):
            continue
        raise InvalidArgument(f"{field.name} is {value}: it must be {'0 or above' if field.name == but else 'above 0'}")


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """How a producer sends.

    Attributes:
        send_timeout_s: seconds for all tries of a message together, from the first try on; each goes to another broker
            where there is one.
        max_body_bytes: largest body in bytes; brokers have a limit of their own.
        batch_messages: most messages in one batch.
        batch_bytes: size in bytes of bodies at which a batch is full.
        buffer_bytes: bytes of bodies that may be on their way.
        block_when_full: wait for room in the buffer, or raise BufferFull.
        window: requests that may be under way to one broker.
        close_timeout_s: seconds that `close` waits for what is on its way.
        compression: of batches, "none" or "zstd"; brokers store them as they come, and consumers open both.
        compress_above_bytes: smaller batches are not compressed, nor are those on which that saves next to nothing.
        fault_avoidance: leave brokers out for a while that fail or are slow, as long as there are others. Messages
            that must go to one queue go there all the same.
        latency_table: for how long, by latency: "5.1.4" or "4.x", the tables of these releases of RocketMQ.
        probe_interval_s: seconds between two questions to a broker that is left out because it was not reached; an
            answer ends that.
        machine_rooms: rooms that are near; brokers are named ROOM@NAME. Others are used when no broker there is.
    """

    send_timeout_s: float = 3.0
    max_body_bytes: int = 4 << 20
    batch_messages: int = 4096
    batch_bytes: int = 1 << 20
    buffer_bytes: int = 64 << 20
    block_when_full: bool = True
    window: int = 8
    close_timeout_s: float = 30.0
    compression: CompressionName = "none"
    compress_above_bytes: int = 4096
    fault_avoidance: bool = True
    latency_table: str = DEFAULT_LATENCY_TABLE
    probe_interval_s: float = 0.5
    machine_rooms: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_above_zero(self)
        choices = get_args(CompressionName)
        if self.compression not in choices:
            raise InvalidArgument(f"compression is {self.compression!r}: it must be one of {', '.join(choices)}")
        latency_table(self.latency_table)
        if isinstance(self.machine_rooms, str):
            raise InvalidArgument(f"machine_rooms is {self.machine_rooms!r}: give a sequence of names")

    @property
    def batch_compression(self) -> Compression | None:
        """How batches are compressed; None when they are not."""
        return Compression(self.compress_above_bytes) if self.compression == "zstd" else None


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
