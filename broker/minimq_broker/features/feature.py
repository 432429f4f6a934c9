"""The classes by which a feature plugs into the kernel.

The kernel does not name a feature: it asks the registered ones through the classes of this file. A feature inherits
from them and overrides what it needs; the other methods do nothing. The protocols are what a feature gets. State has
four places, by its lifetime: a `Table` is durable, a `Scratch` lives for one commit, a `Serving` for one run of the
broker, and what `Serving.began` makes for one term. A `Feature` has none.

    Feature   made once per process           each method names its thread
    Table     made with each `State`          changed by the writer's thread, read by any
    Scratch   made on first use in a commit   writer's thread
    Pins      made for a round of upkeep      thread of retention or compaction
    Serving   made once per broker            event loop
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import msgspec

from minimq_broker.state.facts import Topic
from minimq_broker.state.producers import BatchLocation, Repeated
from minimq_broker.state.queue_ends import BatchApplied, BatchHeld, HeldKey, QueueEnd, QueueKey
from minimq_common.batch.header import Header
from minimq_common.errors import MinimqError

#: Group, topic id and queue id of a committed offset.
OffsetKey = tuple[str, int, int]
#: Handles one call: request and context of gRPC.
Handler = Callable[[Any, Any], Awaitable[Any]]


class IndexRow(NamedTuple):
    """A row of a feature in a segment. It is written in the transaction of its entry, and copied and cut with it."""

    #: Name of the feature.
    table: str
    key: bytes
    #: Log position of the entry. Stored first in the value: the kernel cuts rows without asking the feature.
    position: int
    about: bytes = b""

    @property
    def stored(self) -> tuple[bytes, bytes]:
        """Key and value in the database."""
        return self.key, self.position.to_bytes(8, "big") + self.about


class Pins:
    """A feature's needs of the log, by the saved state. Used by one thread of retention or compaction at a time.

    By the saved state, as a restart recovers from it: an entry that the current state no longer needs may be read again
    by the next recovery.
    """

    def keeps(self, effect: Any, position: int) -> bool:
        """Return whether a rewriting has to copy the feature's fact or held batch at a log position."""
        return False

    def bytes_in(self, segment: Any) -> int:
        """Estimate how many bytes of a sealed segment are needed. If 0, which is exact, the file may be deleted."""
        return 0


class KernelState(Protocol):
    """The part of the `State` that tables use. The writer's thread changes it; any thread may look up single values."""

    #: Log position of the entry that is being applied.
    position: int
    topics: dict[str, Topic]
    committed: dict[OffsetKey, int]
    ends: dict[QueueKey, QueueEnd]

    def topic_name(self, topic_id: int) -> str | None:
        """Return the name of a topic, None if there is no topic with this id."""

    @property
    def tables(self) -> Mapping[str, Any]:
        """The tables of features, by name."""

    def name_of(self, queue: QueueKey) -> str:
        """Return the display name of a queue."""

    def end(self, queue: QueueKey) -> QueueEnd:
        """Return the end of a queue."""

    def move_offset(self, key: OffsetKey, offset: int) -> None:
        """Set a committed offset, as `Table.apply` demands it; does not call `Table.offset_moved`."""

    def use_group(self, group: str, at_ms: int) -> None:
        """Note that a group is in use, so that it does not expire."""


class Table:
    """The durable state of a feature: the result of its entries. Look it up with `state.tables[name]` each time.

    A truncation replaces the state with all tables. `apply`, `held`, `released` and the notifications must not fail,
    because the entry is already in the log: checks belong to the job that adds it. The same entries always give the
    same table, on each replica.
    """

    def __init__(self) -> None:
        #: Keys of the rows that differ from the checkpoint. The kernel saves these rows only, under the feature's name.
        self.changed: set[tuple[Any, ...]] = set()

    def apply(self, fact: Any, at_ms: int, state: KernelState) -> None:
        """Apply a fact of the feature. Writer's thread, and recovery."""

    def held(self, held: BatchHeld, state: KernelState) -> None:
        """Note a batch that the feature holds. Writer's thread, and recovery."""

    def released(self, key: HeldKey, batch: BatchApplied, state: KernelState) -> None:
        """Note that a held batch is in its queue now. Writer's thread, and recovery."""

    def topic_deleted(self, topic: Topic, state: KernelState) -> None:
        """Forget what belongs to a topic. Writer's thread, and recovery."""

    def offset_moved(self, key: OffsetKey) -> None:
        """Forget what a committed offset, which was set or deleted, makes invalid. Writer's thread, and recovery."""

    def row(self, key: tuple[Any, ...]) -> Any | None:
        """Return the row of a key in `changed`, None if it is deleted. Writer's thread, every few seconds."""
        raise NotImplementedError

    def load(self, key: tuple[Any, ...], value: Any) -> None:
        """Load a row of a checkpoint. Raises `ValueError` if it is malformed. Before recovery."""
        raise NotImplementedError

    def saving(self) -> Callable[[], None] | None:
        """Return a function that is called once the rows of this moment are on disk: what `Pins` may rest on then.

        Writer's thread; also called after a load.
        """
        return None


class Hold(Protocol):
    """The reason to hold a batch; made by `Serving.hold_of`."""

    #: Name of the feature.
    feature: ClassVar[str]
    #: The producer table detects repeated batches by their numbers. Otherwise the feature does.
    numbered: ClassVar[bool]


class Append(Protocol):
    """The part of an `AppendJob` that features use."""

    topic: str
    queue_id: int
    #: `Caller.tag` of the sender.
    user: int
    data: bytes
    header: Header
    hold: Any


class Group(Protocol):
    """The part of the `CommitGroup` that features use. `state` is that before the commit; methods see the commit."""

    now_ms: int
    #: Log position of the next entry.
    end: int
    log: Any
    disk: Any

    @property
    def rejection(self) -> MinimqError | None:
        """Why no batch may be written now, or None. Facts may always be."""

    @property
    def state(self) -> Any:
        """The state before the commit."""

    def queue_of(self, job: Any, topic: Topic) -> QueueKey:
        """Return the queue of a batch. Raises the reason if it may not be written."""

    def queue_end(self, queue: QueueKey) -> QueueEnd:
        """Return the end of a queue."""

    def offset(self, key: OffsetKey) -> int | None:
        """Return a committed offset."""

    def scratch(self, name: str) -> Any:
        """Return the scratch of a feature."""

    def add(self, fact: Any) -> None:
        """Add a fact."""

    def held(self, job: Any, tag: int, queue: QueueKey, until_ms: int, note: bytes) -> BatchLocation:
        """Add a batch that the feature with this tag holds."""

    def release(self, tag: int, key: HeldKey, entry: bytes) -> tuple[BatchHeld, BatchLocation]:
        """Add the batch in an entry to its queue, whose topic must exist. Raises `CorruptEntry` and adds nothing."""


class Scratch:
    """The decisions of a feature within one commit, which its table does not have yet. Writer's thread."""

    def hold(self, job: Append, topic: Topic) -> BatchLocation | Repeated | None:
        """Hold a batch with `Group.held` and return its place; None to append it to its queue after all.

        Only for batches with the feature's hold, if the producer table does not have them. Raises to reject the batch.
        """
        raise NotImplementedError

    def end(self) -> None:
        """Undo what was tried on the table: all jobs are decided, and their effects are applied after the sync."""


@dataclass(frozen=True, slots=True)
class Role:
    """The start of a term, as a feature sees it. The engine has the groups, leases and claims of the term."""

    #: The `InitialOffsets`.
    starts: Any


class Serving:
    """A feature at one broker: its tasks, calls and counters. Event loop, except `lag` and `metrics`."""

    #: The `ServiceDescriptor` of its calls; None without calls.
    service: Any = None
    #: Each `PeriodicTask` is started and stopped with the broker.
    tasks: Sequence[Any] = ()

    def began(self, role: Role) -> Mapping[str, Handler]:
        """Begin a term, also at the start: retire what belongs to the last one, and return the handlers by call."""
        return {}

    def hold_of(self, request: Any) -> Any:
        """Return what an `Append` with the feature's hold asks for. Raises `InvalidArgument`."""
        raise NotImplementedError

    def held(self, job: Any, *, is_new: bool) -> None:
        """Note that a held batch is acknowledged, such as to set a timer; not `is_new`: again."""

    def progress_of(self, append: Any) -> Any | None:
        """Return what an `AtomicAppend` records of the feature besides its batches; None without such a part.

        Called right before the job is submitted, without an `await` in between, so that its checks still hold when the
        job is queued. Raises to reject the append. The job calls `decide(group)` of the result, which returns facts:
        the kernel writes nothing before all parts have decided, so nothing has to be undone.
        """
        return None

    def lag(self, key: OffsetKey, first: int, end: int) -> int | None:
        """Return how many messages from `first` to `end` a group has not consumed; None to count all of them.

        On the thread of a scrape.
        """
        return None

    def metrics(self, prefix: str) -> Iterable[Any]:
        """Return metrics. On the thread of a scrape."""
        return ()


class Feature:
    """A feature. Has no mutable state."""

    #: Of the folder, the table, its rows and its index; begins the msgspec tags of its facts: "name.fact".
    name: str
    #: Of its entries and rows. Recorded in the log before the first one, so that a broker without the feature rejects
    #: the directory.
    version: int = 1
    #: Marks entries that the feature holds: 1 to 255, never used again for another one; 0 if it holds none.
    tag: int = 0
    #: Its branch of `Append.hold`; empty if it holds none.
    hold_field: str = ""
    #: Has index rows: segments have a table for them.
    has_index: bool = False
    facts: tuple[type[msgspec.Struct], ...] = ()

    def table(self) -> Table:
        """Return an empty table, for a new `State`. Any thread."""
        return Table()

    def set_topic(self, topic: Topic, former: Topic | None, request: Any) -> Topic:
        """Return a topic with the settings that a request to create it, or to change `former`, has for the feature.

        Raises `InvalidArgument`. Writer's thread.
        """
        return topic

    def describe_topic(self, topic: Topic, described: Any) -> None:
        """Add the feature's settings to a description of a topic for clients. Any thread."""

    def index_rows(self, effect: Any, position: int) -> Iterable[IndexRow]:
        """Return the index rows of a fact or held batch at a log position. Any thread; only with `has_index`."""
        return ()

    def check_held(self, held: BatchHeld) -> None:
        """Raise `CorruptEntry` if the note of a received batch is malformed. Writer's thread, and recovery."""

    def pins(self, state: Any, log: Any) -> Pins | None:
        """Return what must stay in the log, None if nothing must. Any thread.

        Not on the table, which does no I/O: a million waiting batches are found by index rows.
        """
        return None

    def scratch(self, group: Group) -> Scratch:
        """Return a new scratch. Writer's thread, on the first call of `Group.scratch` in a commit."""
        raise NotImplementedError

    def audit(self) -> Callable[[Any, int], None] | None:
        """Return a function that receives all effects in log order, and raises `CorruptEntry` if one is impossible.

        For `check`, on its only thread.
        """
        return None

    def findings(self, state: Any) -> Iterable[str]:
        """Return the contradictions in the rows of a checkpoint. For `check`, on its only thread."""
        return ()

    def serve(self, engine: Any, options: Any) -> Serving:
        """Return the feature's side on the event loop, once per broker with its `BrokerOptions`."""
        return Serving()
