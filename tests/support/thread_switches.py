"""A program that prints how often its threads go to sleep during messages that a gRPC stream echoes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import minimq_common  # noqa: F401 - first, as it sets what gRPC reads  # isort: skip
import grpc.aio

METHOD = "/echo/Echo"


async def echo(requests: AsyncIterator[bytes], _: object) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


def switches() -> int:
    texts = [path.read_text() for path in Path("/proc/self/task").glob("*/status")]
    return sum(int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0]) for text in texts)


async def main(messages: int) -> None:
    handler: Any = grpc.stream_stream_rpc_method_handler(echo)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("echo", {"Echo": handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.stream_stream(METHOD)()
        before = 0
        for number in range(2 * messages):
            if number == messages:  # the first half starts gRPC's threads
                before = switches()
            await call.write(b"x")
            assert await call.read() == b"x"
        print(switches() - before)
        call.cancel()
    await server.stop(None)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
