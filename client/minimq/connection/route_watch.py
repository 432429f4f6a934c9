"""The watch of routes: one stream from a name server that tells each change."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import suppress

import grpc
import grpc.aio

from minimq.connection.name_servers import NameServers
from minimq.transport.client_log import client_logger
from minimq_common.errors import InvalidArgument
from minimq_common.model import TopicRoute
from minimq_common.outage_log import OutageLog
from minimq_common.wire import rpc
from minimq_common.wire.convert import route_from_wire
from minimq_proto.v1 import nameserver_pb2

log = client_logger(__name__)

_NOT_WATCHED = "routes: not watched, trying again nameserver=%s reason=%s"

#: Topics that are watched at most, as name servers have it; further ones are asked for at each poll.
MOST_WATCHED = 20_000

#: Waits between two tries to open the stream, in seconds.
_FIRST_RETRY_S = 0.1
_LONGEST_RETRY_S = 1.0

_Stream = grpc.aio.StreamStreamCall[nameserver_pb2.WatchRoutesRequest, nameserver_pb2.RouteEvent]


class RouteWatch:
    """Follows all watched topics, at one name server after the other. Used on one event loop.

    A name server whose stream breaks, or that leaves a ping on it unanswered, is left at once for the next one.
    """

    def __init__(
        self,
        nameservers: NameServers,
        watched: Callable[[], list[str]],
        keep: Callable[[TopicRoute], object],
        poll_s: float,
    ) -> None:
        self._nameservers = nameservers
        self._topics = watched
        self._keep = keep
        self._poll_s = poll_s
        self._topics_changed = asyncio.Event()
        self._stream: _Stream | None = None
        self._watched = ""  # whose stream that is
        self._events = 0  # that it has brought
        self._sound_at = math.inf
        self._outage = OutageLog(log)

    @property
    def is_sound(self) -> bool:
        """False when the watch has not brought every route for two polls."""
        return time.monotonic() - self._sound_at <= 2 * self._poll_s

    def topics_changed(self) -> None:
        """Tell the name server which topics are watched now."""
        self._topics_changed.set()

    def leave_silent(self) -> None:
        """End the stream, so that it begins anew, when its name server gave no answer to a question."""
        if self._stream is not None and self._watched != self._nameservers.preferred:
            self._stream.cancel()

    async def run(self) -> None:
        """Watch until this is cancelled."""
        self._sound_at = time.monotonic()
        retry_s = _FIRST_RETRY_S
        while True:
            nameserver = self._nameservers.preferred
            self._events = 0
            try:
                if await self._follow(nameserver):
                    retry_s = _FIRST_RETRY_S
                    continue
            except Exception as error:  # noqa: BLE001 - whatever it is, routes have to be watched on
                self._outage.crashed(_NOT_WATCHED, nameserver, f"a fault of the client: {error!r}", cause=error)
            self._nameservers.avoid(nameserver)
            retry_s = _FIRST_RETRY_S if self._events else min(2 * retry_s, _LONGEST_RETRY_S)
            await asyncio.sleep(retry_s)

    async def _follow(self, nameserver: str) -> bool:
        stream = self._open(nameserver)
        requests = asyncio.create_task(self._send_topics(stream))
        try:
            async for event in stream:
                self._events += 1
                self._outage.worked("routes: watched nameserver=%s", nameserver)
                self._keep(route_from_wire(event.route))
        except InvalidArgument as error:
            self._outage.failed(_NOT_WATCHED, nameserver, f"it tells what cannot be: {error.message}")
        except grpc.aio.AioRpcError as error:
            code, details = rpc.status_of(error)
            # A stream that lived to its deadline and had something to say was in order: that was the poll.
            if code is grpc.StatusCode.DEADLINE_EXCEEDED and (self._events or not self._topics()):
                self._sound_at = time.monotonic()
                return True
            # gRPC forgets why a stream was refused if a request was on its way just then; a question tells.
            refusal = await self._nameservers.refusal(nameserver) if code is grpc.StatusCode.INTERNAL else None
            reason = rpc.why_unreached(details) if refusal is None else refusal.message
            self._outage.failed(_NOT_WATCHED, nameserver, reason, kind=str(code))
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            self._outage.failed(_NOT_WATCHED, nameserver, "it did not answer a question")  # see `leave_silent`
        finally:
            self._stream = None
            stream.cancel()
            requests.cancel()
            await asyncio.gather(requests, return_exceptions=True)
        return False

    def _open(self, nameserver: str) -> _Stream:
        stream = self._nameservers.stub(nameserver).WatchRoutes(timeout=self._poll_s)
        self._stream, self._watched = stream, nameserver
        self.leave_silent()  # it may have been found silent a moment ago
        return stream

    async def _send_topics(self, stream: _Stream) -> None:
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the stream has ended, which `_follow` sees
            while True:
                self._topics_changed.clear()
                topics = self._topics()[:MOST_WATCHED]
                await stream.write(nameserver_pb2.WatchRoutesRequest(topics=topics))
                await self._topics_changed.wait()


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
