"""Rules for the names of topics, groups, brokers and clusters."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from minimq_common.errors import InvalidArgument
from minimq_common.names import check_address, check_broker, check_cluster, check_group, check_topic, check_transaction
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


@pytest.mark.parametrize("name", ["%RETRY%group", "%DLQ%shop.billing"])
def test_names_that_minimq_makes_are_those_of_topics(name: str) -> None:
    assert check_topic(name) == name
    with pytest.raises(InvalidArgument, match="illegal transaction name"):
        check_transaction(name)
    for kind in ("group", "broker", "cluster"):
        with pytest.raises(InvalidArgument, match=f"illegal {kind} name"):
            CHECKS[kind](name)


def test_dots_alone_name_nothing() -> None:
    with pytest.raises(InvalidArgument, match=r"the characters _ - \. are allowed, and not dots alone"):
        check_topic("..")


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


def test_several_names_are_not_one() -> None:
    with pytest.raises(InvalidArgument, match=r"^the topic name is a list: give text, one topic in each call$"):
        check_topic(["a", "b"])  # type: ignore[arg-type]


def test_a_long_illegal_name_is_cut() -> None:
    with pytest.raises(InvalidArgument) as rejected:
        check_topic("ä" * 127)
    assert f"'{'ä' * 40}'..." in rejected.value.message
    assert "ä" * 41 not in rejected.value.message


def test_only_a_broker_may_name_its_machine_room() -> None:
    assert check_broker("room-1@broker-a") == "room-1@broker-a"
    for kind in ("topic", "group", "cluster"):
        with pytest.raises(InvalidArgument, match=r"the characters _ - \. are allowed"):
            CHECKS[kind]("room-1@broker-a")
    with pytest.raises(InvalidArgument, match=r"the characters _ - \. @ are allowed"):
        check_broker("room 1@broker-a")


@for_each("address", ["my_host:1", "[::1]:9876", "[fe80::1%eth0]:1", "mq1.example.org:65535", "ü:1"])
def test_addresses(address: str) -> None:
    assert check_address(address) == address


@for_each("address", ["::1:9876", "::1", "2001:db8::1:9876", "[::1:9876", "[]:1", "[a]:1", "a]:1", "::]:1"])
def test_an_ipv6_address_stands_in_brackets(address: str) -> None:
    with pytest.raises(InvalidArgument, match="put an IPv6 address in brackets"):
        check_address(address)
