"""Connections to a broker by programs that are no clients of it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

from minimq import LocalCluster, Message, MessageQueue, Producer
from minimq.connection.connection import Connection
from minimq.sending.append_stream import AppendStream
from minimq_common.batch import builder as batch_builder
from minimq_common.batch import header as batch
from minimq_common.batch.header import Section
from minimq_common.errors import MessageTooLarge, MinimqError
from support.batches import sealed
from support.hostile_batches import raw_batch
from support.raw_member import RawMember
from support.reading import read_all, read_queue
from support.waiting import wait_until

TIMEOUT_S = 60.0


def test_garbage_at_the_port_of_a_broker_disturbs_nobody(cluster: LocalCluster, producer: Producer, topic: str) -> None:
    host, _, port = cluster.brokers[0].address.partition(":")
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 1000, preface + b"\xff" * 5000):
        with socket.create_connection((host, int(port)), timeout=5) as stranger, contextlib.suppress(OSError):
            stranger.sendall(garbage)
            stranger.settimeout(1.0)
            stranger.recv(1000)
    for _ in range(8):
        producer.send(Message(topic, b"x"))
    assert len(read_all(cluster.nameserver, topic)) == 8


def test_a_broken_batch_is_rejected_before_it_is_stored(cluster: LocalCluster, producer: Producer, topic: str) -> None:
    good = batch_builder.encode([Message(topic, b"x")], 0, 1, 1, 100)
    connection = Connection([cluster.nameserver])
    stream = AppendStream(connection, cluster.brokers[0].address)
    queue = MessageQueue(topic, "broker-a", 0)
    answers: dict[int, MinimqError | None] = {}
    large = batch_builder.encode([Message(topic, bytes(5 << 20))], 0, 1, 1, 32 << 20)
    cases = [
        good[:-1] + bytes([good[-1] ^ 1]),
        good[:10],
        b"",
        raw_batch({Section.BODY_OFFSETS: bytes(8), Section.BODIES: b"x"}, 1 << 31),  # more than the index can count
        raw_batch({Section.BODY_OFFSETS: bytes(8), Section.BODIES: b"x"}, 1, born_first_ms=-1 << 63),
        sealed(bytes([batch.FIFO_VERSION + 1]) + good[1:-4]),
        bytes((8 << 20) + 1),
        large,
        good,
    ]

    def answer_of(number: int) -> Callable[[object, MinimqError | None], None]:
        return lambda _, error: answers.__setitem__(number, error)

    for number, data in enumerate(cases):
        connection.call_soon(stream.append, queue, data, answer_of(number))
    wait_until(lambda: len(answers) == len(cases), TIMEOUT_S)

    codes = [error.code if (error := answers[number]) else None for number in range(len(cases))]
    assert codes == ["CORRUPT_BATCH"] * 5 + ["INVALID_ARGUMENT", "MESSAGE_TOO_LARGE", "MESSAGE_TOO_LARGE", None]
    assert [message.body for message in read_queue(cluster.nameserver, queue)] == [b"x"]
    connection.call_soon(
        stream.append, queue, bytes(38 << 20), answer_of(9)
    )  # is not even taken in, which ends the stream
    wait_until(lambda: 9 in answers, TIMEOUT_S)
    assert isinstance(answers[9], MessageTooLarge)
    connection.close()
    producer.send(Message(topic, b"y"))


# ---- Texts of a client neither fill the log of a broker nor forge records in it -----------------


def test_a_client_id_cannot_forge_a_record(tmp_path: Path) -> None:
    forged = "2026-03-01 09:30:00,125 ERROR   minimq_broker: all is lost"
    with LocalCluster(brokers=1, data_dir=tmp_path) as cluster:
        [broker] = cluster.brokers
        with RawMember(broker.address, f"c1\n{forged}") as member:
            member.join("g", "t")
            member.hears_before_heartbeat()
        wait_until(lambda: "all is lost" in broker.log_path.read_text(), TIMEOUT_S)
        assert not any(line.startswith(forged) for line in broker.log_path.read_text().splitlines())
