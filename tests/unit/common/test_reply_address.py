"""The property by which a message is a request: read back as written, and nothing else is taken for one."""

from __future__ import annotations

from minimq_common.errors import InvalidArgument
from minimq_common.names import MAX_BROKER, check_broker
from minimq_common.properties import ReplyTo, reply_to
from minimq_common.wire.protocol_bounds import INBOX_BYTES
from support.cases import for_each

INBOX = bytes(range(INBOX_BYTES))
GOOD = ReplyTo("room@broker-a", INBOX, "0f-A_9", 3_000)


@for_each("character", [chr(code) for code in range(128)])
def test_a_broker_is_named_as_brokers_are(character: str) -> None:
    name = f"a{character}b"
    try:
        check_broker(name)
    except InvalidArgument:
        assert reply_to(str(GOOD._replace(broker_name=name))) is None
    else:
        assert reply_to(str(GOOD._replace(broker_name=name))) is not None


@for_each(
    "value",
    [
        "",
        "/",
        "///",
        "broker-a",
        str(GOOD) + "\n",
        str(GOOD) + "/",
        str(GOOD) + "0000000",
        "x" * 1_000_000,
        str(GOOD._replace(broker_name="")),
        str(GOOD._replace(broker_name="b" * (MAX_BROKER + 1))),
        str(GOOD._replace(inbox=INBOX[1:])),
        str(GOOD._replace(inbox=INBOX + b"x")),
        str(GOOD).replace("0a0b", "0A0B"),
        str(GOOD._replace(correlation_id="")),
        str(GOOD._replace(correlation_id="c" * 65)),
        str(GOOD._replace(correlation_id="ü")),
        str(GOOD._replace(wait_ms=-1)),
        str(GOOD).replace("3000", "٣"),
    ],
)
def test_other_values_are_none(value: str) -> None:
    assert reply_to(value) is None
