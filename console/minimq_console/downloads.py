"""Bodies of messages as files, which no browser runs or shows."""

from __future__ import annotations

import asyncio
import re

from starlette.requests import Request
from starlette.responses import Response

from minimq_common.errors import MiniMQError
from minimq_console.asking import Asking
from minimq_console.faces import failure_response, parameters_of
from minimq_console.failures import failure_of
from minimq_console.page import Visit
from minimq_console.pages.message import PATH, address_of
from minimq_console.surroundings import Surroundings

#: Address of the body of a message.
BODY_PATH = f"{PATH}/body"


class Downloads:
    """Answers requests for bodies. Used on the event loop."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings

    async def answer(self, request: Request) -> Response:
        """Return the body of the message at the address."""
        try:
            visitor, parameters = request.state.visitor, parameters_of(request)
            visit = Visit(visitor, parameters, Asking(self._surroundings.calling))
            address = address_of(parameters)
            asked = visit.ask("the message", lambda: visitor.observer.admin.message_at(address))
            loop = asyncio.get_running_loop()
            message = await loop.run_in_executor(self._surroundings.gathering, asked.required)
        except MiniMQError as error:
            return failure_response(self._surroundings, request, failure_of(error))
        name = re.sub(r"[^A-Za-z0-9._-]", "_", f"{address.queue.topic}-{address.queue.broker_name}")
        headers = {
            "Content-Disposition": f'attachment; filename="{name}-{address.queue.queue_id}-{address.offset}.bin"',
            "X-Content-Type-Options": "nosniff",
            "Content-Security-Policy": "sandbox; default-src 'none'",
            "Cache-Control": "no-store",
        }
        return Response(message.body, headers=headers, media_type="application/octet-stream")
