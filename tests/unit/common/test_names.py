"""Rules for the names of topics, groups, brokers and clusters."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from minimq_common.errors import InvalidArgument
from minimq_common.names import check_address, check_broker, check_cluster, check_group, check_topic
from support.cases import for_each

CHECKS = {"topic": check_topic, "group": check_group, "broker": check_broker, "cluster": check_cluster}


@for_each("check", CHECKS.values())
@for_each("name", ["a", "orders-2", "shop.orders.v1", ".a", "a..b", "A_z9"])
def test_names_that_all_may_have(check: Callable[[str], str], name: str) -> None:
    assert check(name) == name


@for_each("kind", CHECKS)
@for_each("name", ["a b", "a/b", "ä", "a\n", "a%b", "a|b", "%a", "%DLQ%", "%x%g", ".", "..", "..."])
def test_names_that_none_may_have(kind: str, name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"illegal {kind} name {re.escape(repr(name))}"):
        CHECKS[kind](name)


@for_each(("kind", "longest"), [("topic", 127), ("group", 120), ("broker", 120), ("cluster", 120)])
def test_the_length_is_limited(kind: str, longest: int) -> None:
    assert CHECKS[kind]("a" * longest)
    with pytest.raises(InvalidArgument, match=f"the {kind} name has {longest + 1} characters"):
        CHECKS[kind]("a" * (longest + 1))
    with pytest.raises(InvalidArgument, match=f"the {kind} name is empty"):
        CHECKS[kind]("")


@for_each("kind", CHECKS)
@for_each(("name", "said"), [(None, "None"), (5, "an int"), (b"a", "a bytes"), ({}, "a dict")])
def test_a_name_is_text(kind: str, name: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^the {kind} name is {said}: give text$"):
        CHECKS[kind](name)


@for_each("address", ["my_host:1", "[::1]:9876", "[fe80::1%eth0]:1", "mq1.example.org:65535", "ü:1"])
def test_addresses(address: str) -> None:
    assert check_address(address) == address
