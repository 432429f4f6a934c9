"""A web service that sends an order for each request, and counts the orders that it receives from the topic.

    pip install minimq fastapi uvicorn
    minimq local              # then, in another terminal:
    minimq topic create orders --queues 4
    uvicorn --app-dir examples fastapi_app:app
    curl -d '{"item": "espresso"}' -H 'Content-Type: application/json' http://127.0.0.1:8000/orders

Clients belong to the event loop of the service: they are created when it starts, and closed when it stops.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel

from minimq import ConsumeResult, Message, ReceivedMessage
from minimq.aio import Producer, PushConsumer
from minimq.errors import MinimqError


class Order(BaseModel):
    item: str


@asynccontextmanager
async def lifespan(service: FastAPI) -> AsyncIterator[None]:
    nameserver = os.environ.get("MINIMQ_NAMESERVER", "127.0.0.1:9876")
    service.state.worked = 0

    async def work(messages: list[ReceivedMessage]) -> ConsumeResult:
        service.state.worked += len(messages)
        return ConsumeResult.SUCCESS

    async with Producer(nameserver) as producer, PushConsumer(nameserver, group="shop") as consumer:
        service.state.producer = producer
        consumer.subscribe("orders")
        await consumer.start(work)
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def place(order: Order, request: Request) -> dict[str, str]:
    try:
        receipt = await request.app.state.producer.send(Message("orders", order.model_dump_json().encode()))
    except MinimqError as error:
        raise HTTPException(503, error.message) from error
    return {"message_id": receipt.message_id}


@app.get("/worked")
async def worked(request: Request) -> int:
    return int(request.app.state.worked)
