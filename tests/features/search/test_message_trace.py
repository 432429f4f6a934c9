"""A trace that has not seen every open transaction says so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from minimq.features.search.message_trace import MessageTrace, Tracer
from minimq.features.search.operations import _view_trace
from minimq.features.search.search_bounds import bounds_of
from minimq_common.batch import builder
from minimq_common.batch.records import message_id
from minimq_common.errors import Unavailable
from minimq_proto.v1.staged_pb2 import ListHalvesResponse, OpenHalf
from support.batches import LIMIT, NOW_MS, one

PRODUCER_ID, WANTED_SEQUENCE = 7, 5
WANTED = message_id(PRODUCER_ID, WANTED_SEQUENCE, 0)


def half(sequence: int, **fields: Any) -> OpenHalf:
    batch = builder.encode([one()], NOW_MS, PRODUCER_ID, sequence, LIMIT)
    given: dict[str, Any] = {"producer_group": "shop", "number": 1, "batches": 1, "batch": batch}
    return OpenHalf(**(given | fields))


OTHER = half(WANTED_SEQUENCE - 1)


def trace(failures: dict[str, Unavailable] | None = None, **answers: ListHalvesResponse) -> MessageTrace:
    """Trace a message in a cluster without topics, where brokers list these open transactions."""
    client: Any = SimpleNamespace(
        connection=SimpleNamespace(brokers=None, health=None),
        routes=None,
        wait=lambda _: [],
        call_all=lambda *_: (answers, failures or {}),
    )
    masters: Any = SimpleNamespace(calls=client, find=lambda **_: dict.fromkeys([*answers, *(failures or ())], ""))
    return Tracer(masters, bounds_of({}, 1.0)).trace_id(WANTED, None)


def notes(found: MessageTrace) -> list[str]:
    return list(_view_trace(cast("Any", None), SimpleNamespace(since="-1h"), found, None).notes)


def test_brokers_that_list_all_of_their_transactions_make_a_complete_trace() -> None:
    found = trace(a=ListHalvesResponse(halves=[OTHER], count=1), b=ListHalvesResponse())
    assert (found.is_known, found.is_complete, len(notes(found))) == (False, True, 1)


def test_a_broker_that_does_not_list_its_transactions_is_named() -> None:
    found = trace({"b": Unavailable("nobody listens")}, a=ListHalvesResponse())
    assert not found.is_complete
    assert "b: open transactions not searched: nobody listens" in notes(found)
