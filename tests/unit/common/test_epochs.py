"""The grantor of a lease, as its epoch tells it."""

from __future__ import annotations

import itertools

from minimq_common.model import first_epoch, granter

_FIRSTS = [first_epoch(term) for term in (5, 6, 2047)]


def test_whoever_grants_later_has_larger_epochs() -> None:
    for earlier, later in itertools.pairwise(_FIRSTS):
        assert earlier + 1_000_000 < later


def test_each_granter_is_told_apart_however_much_it_grants() -> None:
    granters = [{granter(first), granter(first + 1), granter(first + 1_000_000)} for first in _FIRSTS]
    assert [len(same) for same in granters] == [1] * len(_FIRSTS)
    assert len(set.union(*granters)) == len(_FIRSTS)
