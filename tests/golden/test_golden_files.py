"""The stored and sent bytes of this release. A change of a format changes a file here, and shows in its diff.

`MINIMQ_WRITE_GOLDEN=1 make test ARGS=tests/golden` rewrites the files.
"""

from __future__ import annotations

import os
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor

from golden import directory
from golden.samples import filled, sample
from machine.store import Clock, Store
from minimq_broker.backup.check import check_directory
from minimq_broker.features.feature import Table
from minimq_broker.state import state_rows
from minimq_broker.state.facts import decode_fact, encode_fact, known_facts
from minimq_common.batch.builder import BatchBuilder
from minimq_common.batch.compression import Compression
from minimq_common.batch.records import RecordBatch
from minimq_common.model import Message
from support.protocol import METHODS

HERE = Path(__file__).parent
WRITES = "MINIMQ_WRITE_GOLDEN" in os.environ


def golden(name: str, made: Iterator[str]) -> list[str]:
    """Return the lines of a file; fail if those that this release makes differ."""
    lines, file = list(made), HERE / name
    if WRITES:
        file.write_text("".join(f"{line}\n" for line in lines))
    stored = file.read_text().splitlines()
    assert lines == stored, f"the format of {name} has changed: rewrite the file, and review its diff"
    return stored


def test_facts() -> None:
    facts = [sample(kind) for kind in typing.get_args(known_facts())]
    lines = golden("facts.txt", (f"{type(fact).__name__} {encode_fact(fact).hex()}" for fact in facts))
    assert [decode_fact(bytes.fromhex(line.split()[1])) for line in lines] == facts


MESSAGES = {
    "plain": ([Message("", b"one"), Message("", b"")], None),
    "tags": ([Message("", b"one", "paid"), Message("", b"two", "ä")], None),
    "keys": ([Message("", b"one", None, ("o-17", "o-18")), Message("", b"two", None, ("ß",))], None),
    "properties": ([Message("", b"one", None, (), {"region": "eu"}), Message("", b"two")], None),
    "group": ([Message("", b"one"), Message("", b"two")], "g"),
    "tombstone": ([Message("", b"one", None, ("k",)), Message.tombstone("", "k")], None),
}


def batch(name: str) -> bytes:
    messages, group = MESSAGES[name]
    builder = BatchBuilder(1 << 20, message_group=group)
    builder.add(messages)
    return builder.build(1_700_000_000_000, 7, 3)


def test_batches() -> None:
    for line in golden("batches.txt", (f"{name} {batch(name).hex()}" for name in MESSAGES)):
        name, data = line.split()
        opened = RecordBatch(bytes.fromhex(data))
        assert opened.bodies() == [message.body for message in MESSAGES[name][0]]


def test_a_compressed_batch_is_read() -> None:
    """Compressed bytes differ between releases of zstd: those that are stored must be read by all."""
    file = HERE / "compressed.txt"
    builder = BatchBuilder(1 << 20, compression=Compression(1))
    builder.add([Message("", b"x" * 1_000)])
    if WRITES:
        file.write_text(f"{builder.build(1_700_000_000_000, 7, 3).hex()}\n")
    opened = RecordBatch(bytes.fromhex(file.read_text()))
    assert opened.bodies() == [b"x" * 1_000]


def _messages() -> Iterator[Descriptor]:
    """Yield the request and the answer of each call."""
    for method in METHODS:
        yield method.input_type
        yield method.output_type


def test_requests_and_answers() -> None:
    messages = {each.full_name: filled(each) for each in _messages()}
    made = (f"{name} {each.SerializeToString(deterministic=True).hex()}" for name, each in messages.items())
    for line in golden("calls.txt", made):
        name, _, data = line.partition(" ")
        assert type(messages[name]).FromString(bytes.fromhex(data)) == messages[name]


def test_a_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda _: directory.LOG_ID)  # the id of a new log
    directory.make(tmp_path / "made")
    lines = golden("directory.txt", directory.as_lines(tmp_path / "made"))
    directory.restore(iter(lines), tmp_path / "restored")
    assert check_directory(tmp_path / "restored").findings == []
    opened = Store(tmp_path / "restored", Clock(), directory.OPTIONS)
    try:
        plain = opened.state.topics["plain"].topic_id
        assert [each.base for each in opened.read(plain, 0)] == [0, 2]
        tables = {name for name, table in opened.state.tables.items() if type(table).row is not Table.row}
        assert {row[0] for row in opened.saved_rows()} == state_rows._ROWS.keys() | tables
    finally:
        opened.close()
    assert [*directory.as_lines(tmp_path / "restored")] == lines
