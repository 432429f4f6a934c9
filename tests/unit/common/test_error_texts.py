"""Texts of errors as they travel: whatever they quote, they are not long."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from minimq_broker.assembly import BrokerOptions
from minimq_common.errors import InvalidArgument, TopicNotFound, Unavailable
from minimq_common.names import check_address
from minimq_common.security.user_key import new_key
from minimq_common.wire import rpc

PASSWORD = "s3cr3t/p@ss"
KEY = new_key(bytes(range(37))).text


def test_a_long_text_loses_its_middle() -> None:
    failure = rpc.to_failure(TopicNotFound(f"topic {'t' * (4 << 20)} is not here"))
    assert len(failure.message) == 1999
    assert failure.message.startswith("topic ttt")
    assert "ttt ... ttt" in failure.message
    assert failure.message.endswith("ttt is not here")
    assert len(rpc.to_failure(ValueError("v" * 5000)).message) == 1999


@pytest.mark.parametrize(
    "error",
    [
        lambda: BrokerOptions(controller=f"etcd://root:{PASSWORD}@127.0.0.1:2379"),
        lambda: BrokerOptions(controller=f"etcds://a:1,root:{PASSWORD}@127.0.0.1:2379"),
        lambda: BrokerOptions(controller=f"http://root:{PASSWORD}@127.0.0.1:2379"),
        lambda: check_address(f"root:{PASSWORD}@127.0.0.1:9876"),
        lambda: check_address(f"root:{PASSWORD * 100}@127.0.0.1:9876"),
        lambda: InvalidArgument(f'controller is ["etcd://root:{PASSWORD}@127.0.0.1:2379"]'),
        lambda: InvalidArgument(f"cannot read {KEY}: no such file"),
        lambda: Unavailable("it does not answer").with_message(f"http://u:{PASSWORD}@127.0.0.1 does not answer"),
    ],
)
def test_no_error_shows_a_secret_that_was_given_in_the_wrong_place(error: Callable[[], object]) -> None:
    try:
        shown = error()
    except InvalidArgument as raised:
        shown = raised
    assert "***" in str(shown) or "--etcd-secrets" in str(shown)
    assert not any(part in f"{shown} {shown!r}" for part in ("s3cr3t", "p@ss", "p@", KEY.split("_")[2]))
