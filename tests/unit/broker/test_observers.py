"""Whoever makes an observer says all that it hears: a part that is forgotten is an error, not silence."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from minimq_broker.services.engine import EngineObserver
from minimq_broker.services.store_handle import HandleObserver
from minimq_broker.store.log_reader import LogObserver
from minimq_broker.store.store_options import StoreObserver


@pytest.mark.parametrize("observer", [EngineObserver, HandleObserver, LogObserver, StoreObserver])
def test_an_observer_has_no_defaults(observer: Any) -> None:
    fields = dataclasses.fields(observer)

    assert fields
    assert [field.name for field in fields if field.default is not dataclasses.MISSING] == []
