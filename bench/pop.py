"""The cost of work queues for a broker: its CPU per take, which also acknowledges the messages of the former take.

    .venv/bin/python bench/pop.py [--most 32] [--consumers 4] [--queues 8] [--seconds 5]

Consumers are raw streams of the protocol in this process, so that the result is that of the broker alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any, cast

import grpc.aio
from processes import cpu_times

from minimq import Admin, LocalCluster, Message, Producer
from minimq_proto.v1 import broker_pb2, work_queues_pb2
from minimq_proto.v1.work_queues_pb2_grpc import WorkQueuesStub

TOPIC = "pop"


async def consume(address: str, name: str, most: int, until: float) -> tuple[int, int]:
    """Take and acknowledge messages; return the numbers of takes and of messages."""
    takes = messages = number = 0
    settles: list[broker_pb2.PopSettle] = []
    have: list[int] = []
    async with grpc.aio.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)]) as channel:
        stream: Any = cast("Any", WorkQueuesStub(channel)).Pop()
        while time.monotonic() < until:
            number += 1
            take = work_queues_pb2.PopTake(
                id=number,
                topic=TOPIC,
                max_messages=most,
                max_bytes=1 << 20,
                invisible_ms=60_000,
                wait_ms=100,
                have=have,
            )
            take.start.at = broker_pb2.START_AT_EARLIEST
            await stream.write(work_queues_pb2.PopRequest(group="g", client_id=name, settles=settles, takes=[take]))
            settles, popped = [], None
            while popped is None:
                for result in (await stream.read()).results:
                    assert not result.HasField("failure"), result.failure
                    if result.id == number:
                        popped = result.popped
            for batch in popped.batches:
                if batch.position not in have:
                    have = [batch.position, *have[:15]]
            takes += 1
            if popped.runs:
                messages += sum(run.count for run in popped.runs)
                spans = [value for run in popped.runs for value in (run.first, run.count)]
                number += 1
                settles = [
                    broker_pb2.PopSettle(
                        id=number, topic=TOPIC, queue_id=popped.queue_id, epoch=popped.epoch, spans=spans
                    )
                ]
        await stream.done_writing()
        while await stream.read() is not grpc.aio.EOF:
            pass
    return takes, messages


async def measure(address: str, arguments: argparse.Namespace) -> tuple[int, int]:
    until = time.monotonic() + arguments.seconds
    consumers = [consume(address, f"c{number}", arguments.most, until) for number in range(arguments.consumers)]
    done = await asyncio.gather(*consumers)
    return sum(takes for takes, _ in done), sum(messages for _, messages in done)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=32, help="messages of one take")
    parser.add_argument("--consumers", type=int, default=4)
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--messages", type=int, default=2_000_000, help="sent before, of 100 bytes")
    arguments = parser.parse_args()
    with LocalCluster(brokers=1) as cluster:
        [broker] = cluster.brokers
        with Admin(cluster.nameserver) as admin:
            admin.create_topic(TOPIC, queues=arguments.queues)
        with Producer(cluster.nameserver) as producer:
            producer.send_many(Message(TOPIC, bytes(100)) for _ in range(arguments.messages))
        assert broker.pid
        before, began = cpu_times(broker.pid), time.monotonic()
        takes, messages = asyncio.run(measure(broker.address, arguments))
        took = time.monotonic() - began
        user, system = (after - before for before, after in zip(before, cpu_times(broker.pid), strict=True))
    print(
        json.dumps(
            {
                "takes": takes,
                "messages_per_second": round(messages / took),
                "broker_cpu_us_per_take": round((user + system) / takes * 1e6),
                "of_it_kernel_us": round(system / takes * 1e6),
            }
        )
    )


if __name__ == "__main__":
    main()
