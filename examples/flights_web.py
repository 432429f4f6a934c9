"""A FastAPI web service that publishes departures, and requests a carrier's mean delay from a FastStream handler.

pip install '.[faststream,demo]'   # FastStream, FastAPI and a web server
python examples/flights_web.py     # then, in another terminal:
curl -X POST 'http://127.0.0.1:8000/departures?carrier=UA&delay_min=7'; curl http://127.0.0.1:8000/delays/UA
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI, HTTPException

from faststream_minimq import MinimqBroker, MinimqResponse
from minimq import LocalCluster
from minimq.errors import RequestFailed


def application(broker: MinimqBroker, prefix: str = "") -> FastAPI:
    """Return the service, whose lifespan starts and stops the broker. `prefix` is put before the names of topics."""
    delays: dict[str, list[float]] = defaultdict(list)

    @broker.subscriber(f"{prefix}departures", max_workers=8)
    async def note(carrier: str, delay_min: float) -> None:
        delays[carrier].append(delay_min)

    @broker.subscriber(f"{prefix}delays", max_workers=8)
    async def answer(carrier: str) -> MinimqResponse:
        known = delays.get(carrier)
        return MinimqResponse(sum(known) / len(known)) if known else MinimqResponse(error=f"no {carrier} departed")

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with broker:
            await broker.start()
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/departures")
    async def depart(carrier: str, delay_min: float) -> str:
        departure = {"carrier": carrier, "delay_min": delay_min}
        return (await broker.publish(departure, f"{prefix}departures")).message_id

    @app.get("/delays/{carrier}")
    async def delay(carrier: str) -> float:
        try:
            return float((await broker.request(carrier, f"{prefix}delays", timeout=10)).body)
        except RequestFailed as error:
            raise HTTPException(404, str(error)) from error

    return app


if __name__ == "__main__":
    with LocalCluster(brokers=1) as cluster:
        uvicorn.run(application(MinimqBroker(cluster.nameserver, group="web", create_queues=4)), port=8000)
