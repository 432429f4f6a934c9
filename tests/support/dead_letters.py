"""Stores with dead letters in segments that retention may remove."""

from __future__ import annotations

from typing import Any

from support.stores import OpenStore, Stores

#: Larger than all that is sent, so that a test says when the next one begins.
SEGMENT = 1 << 20
BODY = bytes(2500)
DEAD = "%DLQ%g"
#: Segments of `full` that hold something dead.
ROUNDS = 4


def fill(store: OpenStore, rounds: int = ROUNDS) -> list[bytes]:
    """Fill a segment in each round, with two dead letters among other messages. Returns the dead letters."""
    dead = []
    for number in range(rounds):
        for place in ("first", "second"):
            body = b"%s %d" % (place.encode(), number)
            dead.append(body)
            store.append(DEAD, 0, body)
            store.append("%DLQ%h", number % 2, body)
            for _ in range(4):
                store.append("t", 0, BODY)
        store.clock.now_ms += 1000
        store.store.call(lambda: store.store.log.roll(store.store.end))
    return dead


def made(stores: Stores, **options: Any) -> OpenStore:  # noqa: ANN401 - the fields of StoreOptions
    """Open a store whose state is saved when it is closed."""
    store = stores.open(segment_bytes=SEGMENT, **options)
    for name in ("t", DEAD, "%DLQ%h"):
        if name not in store.state.topics:
            store.create_topic(name, queues=2)
    return store


def remove_all(store: OpenStore) -> None:
    while store.store.remove_first(1 << 60):
        pass


def ready(stores: Stores, **options: Any) -> tuple[OpenStore, list[bytes]]:  # noqa: ANN401 - the same
    """Return a store full of segments that recovery does not need, and the dead letters of group g."""
    store = made(stores, **options)
    dead = fill(store)
    store.close()
    return stores.open(segment_bytes=SEGMENT, **options), dead
