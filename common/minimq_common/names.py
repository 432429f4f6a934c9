"""Rules for the names of topics, groups, brokers and tags."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from minimq_common.errors import InvalidArgument
from minimq_common.text_units import kind_of

T = TypeVar("T")
V = TypeVar("V")

#: Not "." or "..", since names become parts of paths and addresses.
_PLAIN = r"(?!\.+\Z)[a-zA-Z0-9_.-]+"
_NAME = re.compile(rf"{_PLAIN}\Z")
#: Prefix of the topics with replies to requests.
REPLY_PREFIX = "%REPLY%"
#: Also matches the topics that minimq creates: for groups, and for replies.
_NAME_OR_OWN = re.compile(rf"(?:(?:%(?:RETRY|DLQ)%)?{_PLAIN}|{REPLY_PREFIX}[a-zA-Z0-9_.-]*)\Z")
#: Without slashes, blanks, quotes and control characters, such as the line end of a file.
_HOST = re.compile(r"[^\s/\"'\x00-\x1f\x7f]+")
#: `@` separates the machine room from the rest: "room@broker".
_BROKER_NAME = re.compile(r"(?!\.+\Z)[a-zA-Z0-9_.@-]+\Z")

RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
#: Prefix of the names under which half messages of a producer group are staged. No transaction name can start with it.
HALF_PREFIX = "@"
#: Prefix of the transaction names that Spark generates for writes of a data frame; each name is used once.
ONE_TIME_TRANSACTIONS = "spark-batch-"

MAX_TOPIC = 127
MAX_GROUP = 120
MAX_BROKER = 120
MAX_TRANSACTION = 120
MAX_CLIENT_ID = 512
#: A host name (DNS allows 253 characters), a colon and a port.
MAX_ADDRESS = 260

#: An error quotes this many characters of an invalid name.
_SHOWN = 40


def _check(kind: str, name: str, longest: int, pattern: re.Pattern[str] = _NAME, characters: str = "_ - .") -> str:
    if not isinstance(name, str):
        one = f", one {kind} in each call" if isinstance(name, list | tuple | set | frozenset) else ""
        raise InvalidArgument(f"the {kind} name is {kind_of(name)}: give text{one}")
    if not name:
        raise InvalidArgument(f"the {kind} name is empty")
    if len(name) > longest:
        raise InvalidArgument(f"the {kind} name has {len(name)} characters, the limit is {longest}: {name[:_SHOWN]}...")
    if not pattern.match(name):
        shown = repr(name) if len(name) <= _SHOWN else f"{name[:_SHOWN]!r}..."
        besides = ", and not dots alone" if not name.strip(".") else ""
        raise InvalidArgument(
            f"illegal {kind} name {shown}: letters, digits and the characters {characters} are allowed{besides}"
        )
    return name


def check_topic(name: str) -> str:
    """Return the name. Raises `InvalidArgument` if it is not a valid topic name."""
    return _check("topic", name, MAX_TOPIC, _NAME_OR_OWN)


def check_group(name: str) -> str:
    """Return the name. Raises `InvalidArgument` if it is not a valid group name."""
    return _check("group", name, MAX_GROUP)


def is_group(name: str) -> bool:
    return 0 < len(name) <= MAX_GROUP and _NAME.match(name) is not None


def check_transaction(name: str) -> str:
    """Return the name. Raises `InvalidArgument` if it is not a valid transaction name."""
    return _check("transaction", name, MAX_TRANSACTION)


def check_producer_group(name: str) -> str:
    """Return the name. Raises `InvalidArgument` if it is not a valid producer group name."""
    return _check("producer group", name, MAX_GROUP)


def half_name(producer_group: str) -> str:
    """Return the name under which half messages of a producer group are staged."""
    return HALF_PREFIX + producer_group


def is_half_name(name: str) -> bool:
    return name.startswith(HALF_PREFIX)


def retry_topic(group: str) -> str:
    """Return the topic in which failed messages of a group wait for their next delivery."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Return the topic of a group's messages that failed too often or were rejected."""
    return DEAD_LETTER_PREFIX + group


def check_broker(name: str) -> str:
    """Return the name, "broker" or "room@broker". Raises `InvalidArgument` if it is not a valid broker name."""
    return _check("broker", name, MAX_BROKER, _BROKER_NAME, "_ - . @")


def check_cluster(name: str) -> str:
    """Return the name. Raises `InvalidArgument` if it is not a valid cluster name."""
    return _check("cluster", name, MAX_BROKER)


def check_client_id(client_id: str) -> str:
    """Return the id. Raises `InvalidArgument` if it is empty or too long."""
    if not client_id:
        raise InvalidArgument("the client id is empty: give each client its own")
    if len(client_id) > MAX_CLIENT_ID:
        raise InvalidArgument(
            f"the client id has {len(client_id)} characters, the limit is {MAX_CLIENT_ID}: {client_id[:40]!r}..."
        )
    return client_id


def check_address(address: str) -> str:
    """Return the address. Raises `InvalidArgument` if it is not HOST:PORT."""
    host, colon, port = address.rpartition(":")
    if "@" in address:  # the rest may be a password
        shown = f"***@{address.rpartition('@')[2][:MAX_ADDRESS]}"
        raise InvalidArgument(f"{shown!r} has a user or a password, which an address cannot have: write HOST:PORT")
    if len(address) > MAX_ADDRESS:
        raise InvalidArgument(
            f"an address has {len(address)} characters, the limit is {MAX_ADDRESS}: {address[:40]}..."
        )
    if ";" in address:
        raise InvalidArgument(f"{address!r} is not an address: separate several by commas, HOST:PORT,HOST:PORT")
    if not _HOST.fullmatch(host) or not colon or not port.isdecimal() or int(port) > 65_535:
        raise InvalidArgument(f"{address!r} is not an address: write HOST:PORT, for example 127.0.0.1:9876")
    if any(mark in host for mark in "[]:") and not _is_ipv6(host):
        raise InvalidArgument(f"{address!r} is not an address: put an IPv6 address in brackets, for example [::1]:9876")
    return address


def check_named(what: str, check: Callable[[V], T], value: V) -> T:
    """Return `check(value)`; the error begins with `what`, such as the option that the value comes from."""
    try:
        return check(value)
    except InvalidArgument as error:
        raise InvalidArgument(f"{what}: {error.message}") from None


def _is_ipv6(host: str) -> bool:
    import ipaddress  # imported here because most processes do not need it

    try:
        ipaddress.IPv6Address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return host.startswith("[") and host.endswith("]")


def machine_room_of(broker_name: str) -> str:
    """Return the room of a broker named "room@broker"; "" if the name has none."""
    return broker_name.partition("@")[0] if "@" in broker_name else ""
