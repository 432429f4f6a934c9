"""Options of producers and consumers: what is rejected, and how it is said."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest

from minimq import Admin, Cluster, LocalCluster, Producer, PullConsumer
from minimq.consumer import PushConsumer
from minimq.consuming.consumer_options import ConsumerChanges, ConsumerOptions
from minimq.consuming.range_reader import RangeOptions
from minimq.features.listeners.listener_options import PushConsumerChanges, PushConsumerOptions
from minimq.options import nameserver_addresses
from minimq.sending.producer_options import ProducerChanges, ProducerOptions
from minimq_common.errors import InvalidArgument
from support.cases import for_each

PULL, PUSH = ConsumerOptions, PushConsumerOptions


@pytest.mark.parametrize(
    ("changes", "options", "limit"),
    [
        (ProducerChanges, ProducerOptions, 15),
        (ConsumerChanges, ConsumerOptions, 13),
        (PushConsumerChanges, PushConsumerOptions, 10),
    ],
)
def test_type_checkers_know_the_options_which_are_few(changes: type, options: Any, limit: int) -> None:
    fields = {field.name for field in dataclasses.fields(options)}
    assert len(fields) <= limit
    types = {name: kind for name, kind in get_type_hints(options).items() if name in fields}
    assert get_type_hints(changes) == types
    assert list(get_type_hints(changes)) == list(types)  # editors offer them in the order of the documentation


@pytest.mark.parametrize(("client", "options"), [(Producer, "ProducerOptions"), (PullConsumer, "ConsumerOptions")])
def test_an_unknown_option_is_named_with_those_there_are(client: Callable[..., object], options: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"unknown option bogus, other: {options} has \w+_\w+, "):
        client("127.0.0.1:1", other=1, bogus=2)


@for_each(
    ("made", "wrong", "meant"),
    [
        (PullConsumer, "grup", "group"),
        (PushConsumer, "strat", "start"),
        (PullConsumer, "prefetch_byte", "prefetch_bytes"),
        (Producer, "interceptor", "interceptors"),
        (Admin, "timout_s", "timeout_s"),
        (Cluster, "name_server", "nameserver"),
        (LocalCluster, "broker", "brokers"),
    ],
)
def test_a_misspelled_argument_is_answered_with_the_one_that_is_meant(
    made: Callable[..., object], wrong: str, meant: str
) -> None:
    given = {"group": "g"} if made is PushConsumer else {}
    with pytest.raises(InvalidArgument, match=rf"^unknown option {wrong}: did you mean {meant}\?$"):
        made("127.0.0.1:1", **{wrong: 1}, **given)


@for_each(
    ("options", "change"),
    [
        (ProducerOptions, {"max_in_flight_requests": 0}),
        (ProducerOptions, {"send_timeout_s": float("nan")}),
        (ProducerOptions, {"batch_bytes": True}),
        (ConsumerOptions, {"request_timeout_s": 0}),
        (ConsumerOptions, {"commit_interval_s": -1}),
        (RangeOptions, {"max_wait_s": -1}),
    ],
)
def test_a_number_that_cannot_be_is_rejected(options: Any, change: dict[str, float]) -> None:
    [(name, value)] = change.items()
    with pytest.raises(InvalidArgument, match=f"{name} is {value}: it must be"):
        options(**change)


@for_each("compression", ["ZSTD", "gzip", "", True, None])
def test_a_compression_that_is_not_known_is_rejected_with_those_there_are(compression: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"compression is {compression!r}: it must be one of none, zstd"):
        ProducerOptions(compression=compression)


@for_each(
    ("change", "said"),
    [
        ({"max_in_flight_requests": 0.5}, "max_in_flight_requests is 0.5: it must be a whole number"),
        ({"max_in_flight_requests": "8"}, "max_in_flight_requests is '8': it must be a whole number"),
        ({"send_timeout_s": float("inf")}, "send_timeout_s is inf: it must be a finite number"),
        ({"block_when_full": "no"}, "block_when_full is 'no': it must be True or False"),
        ({"max_body_bytes": 1 << 30}, "max_body_bytes is 1073741824: it must be at most 33554432"),
        ({"batch_bytes": 1 << 30}, "batch_bytes is 1073741824: it must be at most 4194304"),
    ],
)
def test_an_option_of_a_wrong_kind_is_rejected(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        ProducerOptions(**change)


@for_each(
    ("options", "change", "said"),
    [
        (PUSH, {"retry_delays_s": 5}, "retry_delays_s is 5: it must be a sequence of numbers above 0, up to 43200"),
        (PUSH, {"retry_delays_s": ()}, "retry_delays_s is (): it must be a sequence"),
        (PUSH, {"retry_delays_s": "10"}, "retry_delays_s is '10': it must be a sequence"),
        (PUSH, {"retry_delays_s": (1, 0)}, "retry_delays_s is (1, 0): it must be a sequence"),
        (PUSH, {"retry_delays_s": (1, None)}, "retry_delays_s is (1, None): it must be a sequence"),
        (PUSH, {"retry_delays_s": [float("inf")]}, "retry_delays_s is [inf]: it must be a sequence"),
        (PUSH, {"max_deliveries": 1.5}, "max_deliveries is 1.5: it must be a whole number from 1 on, or None"),
        (PUSH, {"max_deliveries": True}, "max_deliveries is True: it must be a whole number from 1 on, or None"),
        (PUSH, {"max_deliveries": 0}, "max_deliveries is 0: it must be a whole number from 1 on, or None"),
        (PULL, {"handover_timeout_s": None}, "handover_timeout_s is None: it must be a finite number"),
        (PULL, {"offset_reset": None}, "offset_reset is None: it must be one of earliest, latest, error"),
        (PUSH, {"broadcast_dir": 5}, "broadcast_dir is 5: it must be the path of a folder"),
        (PUSH, {"broadcast_dir": ""}, "broadcast_dir is '': it must be the path of a folder"),
        (PULL, {"on_lost": "print"}, "on_lost is 'print': it must be a function"),
    ],
)
def test_an_option_of_a_consumer_of_a_wrong_kind_is_rejected(options: Any, change: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(said)):
        options(**change)


@for_each(
    ("arguments", "said"),
    [
        ({"threads": 1.5}, "threads is 1.5: it must be a whole number from 1 on"),
        ({"batch_size": "32"}, "batch_size is '32': it must be a whole number from 1 on"),
        ({"batch_size": 0}, "batch_size is 0: it must be a whole number from 1 on"),
        ({"start": 1.5}, "start is 1.5: it must be 'earliest', 'latest', a time such as"),
        ({"start": "soon"}, "start is 'soon': it must be 'earliest', 'latest', a time such as"),
        ({"client_id": 5}, "client_id is 5: it must be text"),
        ({"group": None}, "group is None: it must be text"),
        ({"group": ""}, "the group name is empty"),
        ({"allocation": 5}, "allocation is 5: it must be the name of a strategy, or a strategy"),
    ],
)
def test_an_argument_of_a_consumer_of_a_wrong_kind_is_rejected(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(said)):
        PushConsumer(**{"group": "g", **arguments})


@for_each("nameserver", [None, 5, "http://127.0.0.1:9876", ""])
def test_an_address_that_is_none_is_rejected(nameserver: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"HOST:PORT"):
        nameserver_addresses(nameserver)
