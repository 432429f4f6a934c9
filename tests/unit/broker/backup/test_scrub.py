"""The scrub makes the checksums of sealed segments, and compares files with them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from minimq_broker.backup import crash_note
from minimq_broker.backup.check import check_directory
from minimq_broker.backup.scrub import Scrub
from minimq_broker.calls.engine import Engine
from minimq_broker.calls.limits import Limits
from minimq_broker.commit.store import StoreOptions
from minimq_broker.log.file_checksum import has_checksum
from support.replica_engine import make_topic
from support.waiting import wait_until

LIMITS = Limits(1 << 20, 1 << 22, 1 << 22)


async def sealed_segments(engine: Engine) -> list[Path]:
    await asyncio.to_thread(engine.store.writer.lead, 1)
    for number in range(2):
        await make_topic(engine, 5, f"t{number}")
        await asyncio.to_thread(engine.store.writer.call, lambda: engine.store.log.roll(engine.store.end))
    return [segment.path for segment in engine.store.log.segments[:-1]]


def damage(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-100] ^= 1
    file.write_bytes(data)


def test_a_changed_byte_of_a_sealed_segment_is_found_and_known_after_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        engine = Engine(tmp_path / "data", StoreOptions(), LIMITS, alone=False)
        scrub = Scrub(engine.store, engine.counters, 0.05)
        try:
            first, second = await sealed_segments(engine)
            assert not has_checksum(first)
            scrub.start()
            await asyncio.to_thread(wait_until, lambda: has_checksum(first) and has_checksum(second))
            assert engine.store.damage == {}
            damage(first)
            await asyncio.to_thread(wait_until, lambda: engine.store.damage)
            assert list(engine.store.damage) == [int(first.stem)]
        finally:
            await scrub.stop()
            engine.close()

        caplog.clear()
        monkeypatch.setattr(crash_note, "_LOOK_S", -1.0)  # as with a log that is too large to be read at a start
        engine = Engine(tmp_path / "data", StoreOptions(), LIMITS, alone=False)
        try:
            assert list(engine.store.damage) == [int(first.stem)]
        finally:
            engine.close()

    asyncio.run(test())
    [text] = [text for text in caplog.messages if "a segment is damaged" in text]
    assert "does not match its CRC-32C" in text
    assert "promote another one" in text
    [finding] = check_directory(tmp_path / "data").findings
    assert "does not match its CRC-32C" in finding.damage


def test_a_checksum_is_made_without_rounds(tmp_path: Path) -> None:
    async def test() -> None:
        engine = Engine(tmp_path / "data", StoreOptions(), LIMITS, alone=False)
        scrub = Scrub(engine.store, engine.counters, 0)
        try:
            files = await sealed_segments(engine)
            scrub.start()
            await asyncio.to_thread(wait_until, lambda: all(map(has_checksum, files)))
        finally:
            await scrub.stop()
            engine.close()

    asyncio.run(test())
