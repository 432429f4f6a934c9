"""The web service among the examples."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from faststream_minimq import MinimqBroker
from minimq import LocalCluster

EXAMPLES = Path(__file__).parents[2] / "examples"
WAIT_S = 60.0


def test_what_is_posted_is_counted_and_asked_for(
    cluster: LocalCluster, new_name: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import flights_web  # found only now

    app = flights_web.application(MinimqBroker(cluster.nameserver, group=new_name(), create_queues=1), new_name())

    async def visit() -> tuple[int, float]:
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client,
        ):
            unknown = await client.get("/delays/UA")
            for delay in (5, 9):
                departure = {"carrier": "UA", "delay_min": delay}
                (await client.post("/departures", params=departure)).raise_for_status()
            deadline = time.monotonic() + WAIT_S
            while (found := await client.get("/delays/UA")).json() != 7.0 and time.monotonic() < deadline:  # noqa: ASYNC110 - asked over HTTP
                await asyncio.sleep(0.01)
            return unknown.status_code, found.json()

    assert asyncio.run(visit()) == (404, 7.0)
