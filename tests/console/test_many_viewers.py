"""As many viewers as a company has: each gets its page, and sees it change."""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import pytest

from minimq import LocalCluster, Message, Producer
from support.command import COMMAND
from support.process import process

pytestmark = [pytest.mark.slow, pytest.mark.system]

VIEWERS = 500
#: Viewers who come within a moment; a system rejects connections when more of them wait than its queue has.
AT_ONCE = 100


@pytest.fixture
def address(cluster: LocalCluster) -> Iterator[str]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * VIEWERS
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"the system allows {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        with process(*COMMAND, "-s", cluster.nameserver, "console", "--port", "0") as running:
            assert running.stdout is not None
            yield running.stdout.readline().split()[-1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Viewer:
    """One connection to a console."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._host, self._port = parts.hostname, parts.port

    async def ask(self, opened: AsyncExitStack, path: str, accept: str, entering: asyncio.Semaphore) -> str:
        """Send a request, again while a busy machine keeps the cluster from answering in time.

        Returns the status, and with another one than 200 what was said.
        """
        status = "504"
        while status == "504":
            async with entering:
                self._reader, writer = await asyncio.open_connection(self._host, self._port, limit=1 << 22)
            opened.callback(writer.close)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: {accept}\r\n\r\n".encode())
            head = await self._reader.readuntil(b"\r\n\r\n")
            status = head.split()[1].decode()
        return status if status == "200" else f"{status}: {(await self._reader.read(4096)).decode()}"

    async def read_until(self, text: str) -> None:
        """Read until the body has a text."""
        await self._reader.readuntil(text.encode())


@pytest.mark.timeout(300)
def test_all_watch_a_topic_and_reload_it_at_the_same_time(address: str, topic: str, producer: Producer) -> None:
    async def watch() -> None:
        path, entering = f"/topics/{topic}", asyncio.Semaphore(AT_ONCE)
        async with AsyncExitStack() as opened:
            watching = [Viewer(address) for _ in range(VIEWERS)]
            found = await asyncio.gather(*(each.ask(opened, path, "text/event-stream", entering) for each in watching))
            assert Counter(found) == {"200": VIEWERS}
            await asyncio.gather(*(each.read_until("No messages.") for each in watching))
            await asyncio.to_thread(producer.send, Message(topic, b"seen by all"))
            await asyncio.gather(*(each.read_until("seen by all") for each in watching))

            reading = [Viewer(address) for _ in range(VIEWERS)]
            found = await asyncio.gather(*(each.ask(opened, path, "text/html", entering) for each in reading))
            assert Counter(found) == {"200": VIEWERS}
            await asyncio.gather(*(each.read_until("seen by all") for each in reading))

    asyncio.run(watch())


# ---- Many topics: a small run of `bench/console_pages.py`, which says what is measured -----------
