"""The producer for asyncio: its kernel, and what features add."""

from __future__ import annotations

from minimq.features.delayed.producer_methods import AsyncDelays
from minimq.features.requests.producer_methods import AsyncRequestMethods
from minimq.features.tables.producer_methods import AsyncArrowRows
from minimq.features.transactions.producer_methods import AsyncTransactionMethods
from minimq.sending.aio_producer import AsyncProducer


class Producer(AsyncRequestMethods, AsyncTransactionMethods, AsyncArrowRows, AsyncDelays, AsyncProducer):
    """Sends messages from one event loop; arguments, behavior and guarantees are those of `minimq.Producer`.

    Never blocks the loop: it awaits name servers and room in the buffer, and `send_many` encodes on a thread of the
    loop's executor. Not thread-safe: use it on one loop at a time. Interceptors run on the loop, on the executor in
    `send_many`, and on a thread of the producer.

    A `send` that is cancelled while it waits for a route or for room sends nothing. After that, cancelling has no
    effect on the message: it is sent, and its receipt dropped.
    """
