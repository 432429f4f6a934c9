"""The options that say where a cluster is, and who asks it."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping

import pytest

from minimq import Credentials
from pyspark_minimq.connections import ConnectionOptions, range_reader
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.option_table import Mode
from pyspark_minimq.options import parse_read_options, parse_stream_options
from pyspark_minimq.write_options import parse_write_options
from support.cases import for_each

PARSERS: list[Callable[[Mapping[str, str]], ConnectionOptions]] = [
    lambda given: parse_read_options(given).connection,
    lambda given: parse_stream_options(given).read.connection,
    lambda given: parse_write_options(given, Mode.BATCH).connection,
    lambda given: parse_write_options(given, Mode.STREAM).connection,
]


@for_each("parse", PARSERS)
def test_credentials_are_a_path_or_a_content(parse: Callable[[Mapping[str, str]], ConnectionOptions]) -> None:
    assert parse({"topic": "t"}) == ConnectionOptions()
    assert parse({"topic": "t", "nameserver": "a:1", "credentials": "/a.minimq"}) == ConnectionOptions(
        "a:1", Credentials("/a.minimq")
    )
    found = parse({"topic": "t", "credentialsSecret": "SECRET"})
    assert found == ConnectionOptions(None, Credentials.from_text("SECRET"))
    assert "SECRET" not in repr(found)
    assert pickle.loads(pickle.dumps(found)) == found  # it is sent to the tasks
    with pytest.raises(MinimqSparkError, match="credentials and credentialsSecret are given"):
        parse({"topic": "t", "credentials": "a", "credentialsSecret": "b"})
    with pytest.raises(MinimqSparkError, match=r"^nameserver: 'here' is not an address: write HOST:PORT"):
        parse({"topic": "t", "nameserver": "127.0.0.1:1, here"})


def test_users_share_no_connection() -> None:
    plain = range_reader(ConnectionOptions("127.0.0.1:9"), 60.0)
    assert range_reader(ConnectionOptions("127.0.0.1:9"), 60.0) is plain
    assert hash(ConnectionOptions("127.0.0.1:9", Credentials("a"))) != hash(
        ConnectionOptions("127.0.0.1:9", Credentials("b"))
    )
    assert ConnectionOptions("127.0.0.1:9", Credentials("a")) != ConnectionOptions("127.0.0.1:9", Credentials("b"))
