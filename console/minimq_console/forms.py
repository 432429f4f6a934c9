"""Forms that browsers send, and other bodies of requests."""

from __future__ import annotations

import asyncio
from hmac import compare_digest
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request

from minimq_common.errors import AccessDenied, InvalidArgument
from minimq_console.parameters import Parameters

#: Name of the field with the token.
TOKEN = "token"
_MOST_FIELDS = 60
#: Seconds in which a body is to come as a whole.
_WHOLE_S = 10.0


async def body_of(request: Request) -> bytes:
    """Return the body of a request; `Guard` has bounded its size. Raises `InvalidArgument`."""
    try:
        async with asyncio.timeout(_WHOLE_S):
            return bytes(await request.body())
    except (TimeoutError, ClientDisconnect):
        raise InvalidArgument(f"this request has not come as a whole within {_WHOLE_S:g} s: send it again") from None


async def form_of(request: Request) -> Parameters:
    """Return what a form of this browser's session says. Raises `MiniMQError`."""
    body = await body_of(request)
    try:
        fields = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=_MOST_FIELDS
        )
    except ValueError:
        raise InvalidArgument(f"this is no form of the console: it has at most {_MOST_FIELDS} fields") from None
    form = Parameters(fields, {name: str(value) for name, value in request.path_params.items()})
    expected: str = request.state.form_token
    if not expected or not compare_digest(form.text(TOKEN).encode(), expected.encode()):
        raise AccessDenied("this form is not of this visit, or the console was restarted: open the page again")
    return form
