"""A channel that shows a key with each call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from minimq_common.security.token_check import UserToken
    from minimq_common.security.user_key import UserKey

#: Where a key stands among the metadata of a call, and what stands before it.
HEADER, SCHEME = "authorization", "Bearer "


class _KeyedCall:
    """A call of gRPC that carries a key, and does not show it, as a `functools.partial` would."""

    __slots__ = ("_call", "_metadata")

    def __init__(self, call: Any, metadata: Any) -> None:
        self._call = call
        self._metadata = metadata

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._call(*args, **{"metadata": self._metadata, **named})


class KeyedChannel:
    """A channel of gRPC, plain or of asyncio, whose calls carry a key.

    An interceptor of gRPC would stand between each message and its stream; this adds to the beginning of a call alone.
    The plugins that gRPC has for it begin a thread with each call.
    """

    def __init__(self, channel: Any, key: UserKey | UserToken) -> None:
        self._channel = channel
        self._metadata = ((HEADER, f"{SCHEME}{key.text}"),)

    def unary_unary(self, *args: Any, **named: Any) -> Any:
        """Return a call of gRPC that carries the key."""
        return _KeyedCall(self._channel.unary_unary(*args, **named), self._metadata)

    def unary_stream(self, *args: Any, **named: Any) -> Any:
        """Do as `unary_unary`."""
        return _KeyedCall(self._channel.unary_stream(*args, **named), self._metadata)

    def stream_unary(self, *args: Any, **named: Any) -> Any:
        """Do as `unary_unary`."""
        return _KeyedCall(self._channel.stream_unary(*args, **named), self._metadata)

    def stream_stream(self, *args: Any, **named: Any) -> Any:
        """Do as `unary_unary`."""
        return _KeyedCall(self._channel.stream_stream(*args, **named), self._metadata)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def __enter__(self) -> Self:
        self._channel.__enter__()
        return self

    def __exit__(self, *error: object) -> Any:
        return self._channel.__exit__(*error)

    async def __aenter__(self) -> Self:
        await self._channel.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._channel.__aexit__(*error)
