"""The grantor of a lease, as its epoch tells it."""

from __future__ import annotations

import itertools

from minimq_common.epochs import first_epoch, granter

#: In the order in which they come about: two masters, and slaves that stand in for the first one three times.
_FIRSTS = [first_epoch(5), *(first_epoch(5, stand_in) for stand_in in (1, 2, 2047)), first_epoch(6)]


def test_whoever_grants_later_has_larger_epochs() -> None:
    for earlier, later in itertools.pairwise(_FIRSTS):
        assert earlier + 1_000_000 < later


def test_each_granter_is_told_apart_however_much_it_grants() -> None:
    granters = [{granter(first), granter(first + 1), granter(first + 1_000_000)} for first in _FIRSTS]
    assert [len(same) for same in granters] == [1] * len(_FIRSTS)
    assert len(set.union(*granters)) == len(_FIRSTS)


def test_the_count_of_stand_ins_stays_within_the_term() -> None:
    assert first_epoch(5, 2048) == first_epoch(5, 0)
    assert first_epoch(5) < first_epoch(5, 10**9) < first_epoch(6)
