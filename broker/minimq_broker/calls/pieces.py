"""Requests that arrive in pieces, and a bound on the bytes of all that are incomplete."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio
from google.protobuf.message import DecodeError

from minimq_common.errors import DeadlineExceeded, InvalidArgument, MessageTooLarge, SystemBusy

#: Timeout in seconds for the next piece of a request.
_PIECE_TIMEOUT_S = 30.0
#: Smallest piece before the last one: each takes memory and an answer besides its bytes.
_MIN_PIECE_BYTES = 4096


class IncompleteRequests:
    """Assembles requests from their pieces. On the event loop."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.held = 0

    async def whole(
        self, request: Any, read: Callable[[], Awaitable[Any]], acknowledge: Callable[[int], object], max_size: int
    ) -> Any:
        """Read the pieces that follow the first one, and return the request."""
        kind, parts, size = type(request), list[bytes](), 0
        try:
            while True:
                piece = request.piece
                if not piece:
                    raise InvalidArgument("another request came between the pieces of a request")
                if len(piece) < _MIN_PIECE_BYTES and request.rest:
                    raise InvalidArgument(
                        f"a piece of a request has at least {_MIN_PIECE_BYTES} bytes, except the last"
                    )
                if (whole := size + len(piece) + request.rest) > max_size:
                    raise MessageTooLarge(f"a request of {whole:,} bytes is over the limit of {max_size:,} bytes")
                if self.held > size and size + len(piece) > self._max_bytes - self.held:
                    raise SystemBusy("too many bytes of incomplete requests: retry later", limit="pending-bytes")
                self.held += len(piece)
                size += len(piece)
                parts.append(piece)
                acknowledge(request.piece_id)
                if not request.rest:
                    return kind.FromString(b"".join(parts))
                async with asyncio.timeout(_PIECE_TIMEOUT_S):
                    request = await read()
                if request is grpc.aio.EOF:
                    raise InvalidArgument("the stream ended within a request in pieces")
        except DecodeError as error:
            raise InvalidArgument(f"a request in pieces cannot be read: {error}") from None
        except TimeoutError:
            raise DeadlineExceeded(f"the next piece of a request did not arrive in {_PIECE_TIMEOUT_S:g} s") from None
        finally:
            self.held -= size
