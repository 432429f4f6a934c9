"""The registration of a broker at its name servers: one stream to each, for as long as the broker runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import grpc.aio

from minimq_common.errors import BrokerConflict, DeadlineExceeded, MinimqError, Unavailable
from minimq_common.retry_log import RetryLog
from minimq_common.security.channel_security import PLAIN, ChannelSecurity
from minimq_common.serving.periodic import until_first_ends
from minimq_common.wire import rpc
from minimq_common.wire.bound_check import check_answer
from minimq_common.wire.channels import Channels
from minimq_proto.v1 import nameserver_pb2, nameserver_pb2_grpc

if TYPE_CHECKING:
    from minimq_proto.v1.nameserver_pb2_grpc import NameServerAsyncStub

    _Stream = grpc.aio.StreamStreamCall[nameserver_pb2.RegisterRequest, nameserver_pb2.RegisterResponse]

log = logging.getLogger(__name__)

#: Backoff between attempts to reach a name server. Its maximum is shorter than the time for which a name server that
#: has just started waits for its brokers.
_FIRST_RETRY_S = 0.1
_MAX_RETRY_S = 1.0

#: Timeout of a check of the place. A name server that has just started answers after its grace period.
_CHECK_S = 5.0
#: How long a start waits for the other name servers once one has answered: one that hangs must not delay it.
_OTHERS_S = 1.0
#: How long `stop` waits for name servers to confirm that the broker has left.
_LEAVE_S = 1.0


class Registration:
    """Keeps a broker registered with each of its name servers, independently of the others.

    Sends the whole topic table when a stream opens and when its version has grown, otherwise heartbeats. When a stream
    ends, even because the process was killed, the name server removes the broker from routes at once.

    Before its first registration with a name server it asks there whether another run has its place. So a copy of this
    broker waits while a restarted name server waits for running brokers, which register again without that question.

    Lives on the event loop on which `start` was called.
    """

    def __init__(
        self,
        nameservers: Sequence[str],
        describe: Callable[[], nameserver_pb2.RegisterRequest],
        version: Callable[[], int],
        place: nameserver_pb2.RegisterRequest,
        *,
        heartbeat_s: float = 30.0,
        timeout_s: float = 5.0,
        security: ChannelSecurity = PLAIN,
    ) -> None:
        self._links = [
            _Link(address, describe, version, place, self._reject, heartbeat_s, timeout_s, security)
            for address in nameservers
        ]
        #: Completes if a name server with which this broker was never registered knows another one in its place.
        self.rejected: asyncio.Future[BrokerConflict] = asyncio.get_running_loop().create_future()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def connected(self) -> tuple[str, ...]:
        """The addresses of the name servers with which the broker is registered now."""
        return tuple(link.address for link in self._links if link.connected)

    async def check_place(self) -> bool:
        """Return whether a name server confirms that the place is free. Raises `BrokerConflict` if it is not.

        Name servers that do not answer are skipped: a broker serves even while no name server is up.
        """
        if not self._links:
            return True
        checks = {asyncio.create_task(link.is_free(), name=f"place-{link.address}") for link in self._links}
        try:
            _, late = await asyncio.wait(checks, timeout=_CHECK_S, return_when=asyncio.FIRST_COMPLETED)
            if late:
                await asyncio.wait(late, timeout=_OTHERS_S)
        finally:
            for check in checks:
                check.cancel()
        answers = await asyncio.gather(*checks, return_exceptions=True)
        if self.rejected.done():
            raise self.rejected.result()
        return True in answers

    def _reject(self, conflict: BrokerConflict) -> None:
        if not self.rejected.done():
            self.rejected.set_result(conflict)

    def start(self) -> None:
        """Start registering in the background: a broker serves even while no name server is up. Idempotent."""
        if self._tasks:
            return
        self._tasks = [asyncio.create_task(link.run(), name=f"register-{link.address}") for link in self._links]

    def changed(self) -> None:
        """Send the topic table to all name servers if its version has grown. Calls in quick succession are merged."""
        for link in self._links:
            link.send()

    async def stop(self) -> None:
        """Leave all name servers and end the streams, within about a second. Idempotent."""
        for link in self._links:
            link.leave()
        tasks, self._tasks = self._tasks, []
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=_LEAVE_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Link:
    def __init__(
        self,
        address: str,
        describe: Callable[[], nameserver_pb2.RegisterRequest],
        version: Callable[[], int],
        place: nameserver_pb2.RegisterRequest,
        reject: Callable[[BrokerConflict], None],
        heartbeat_s: float,
        timeout_s: float,
        security: ChannelSecurity,
    ) -> None:
        self.address = address
        self.connected = self._was_registered = False
        self._place, self._reject = place, reject
        self._describe = describe
        self._version = version
        self._heartbeat_s, self._timeout_s = heartbeat_s, timeout_s
        self._security = security
        self._leaving = asyncio.Event()
        self._wake = asyncio.Event()  # there is something to send, or the link is leaving
        self._outage = RetryLog(log)

    def send(self) -> None:
        self._wake.set()

    def leave(self) -> None:
        self._leaving.set()
        self._wake.set()

    def _channels(self) -> Channels[NameServerAsyncStub]:
        return Channels(
            lambda channel: cast("NameServerAsyncStub", nameserver_pb2_grpc.NameServerStub(channel)),
            security=self._security,
        )

    async def is_free(self) -> bool:
        """Ask the name server about the place; False without an answer, or if it was taken, which is reported."""
        async with contextlib.aclosing(self._channels()) as channels:
            try:
                await self._check_place(channels.stub(self.address))
            except (grpc.RpcError, BrokerConflict) as error:
                log.debug("place not confirmed nameserver=%s reason=%s", self.address, error)
                return False
        return True

    async def _check_place(self, stub: NameServerAsyncStub) -> None:
        stream = stub.Register(timeout=_CHECK_S)
        try:
            with contextlib.suppress(asyncio.InvalidStateError):  # the stream is over: `read` raises the reason
                await stream.write(self._place)
            await stream.read()
        except grpc.RpcError as error:
            found = self._explained(error)
            if isinstance(found, BrokerConflict):
                self._reject(found)
                raise found from None
            raise
        finally:
            stream.cancel()

    def _explained(self, error: grpc.RpcError) -> MinimqError:
        return rpc.from_rpc_error(error, f"name server {self.address}")

    async def run(self) -> None:
        retry_s = _FIRST_RETRY_S
        while not self._leaving.is_set():
            try:
                # A new channel connects at once: one that has failed would first wait for the backoff of gRPC.
                async with contextlib.aclosing(self._channels()) as channels:
                    stub = channels.stub(self.address)
                    if not self._was_registered:
                        await self._check_place(stub)
                    await self._hold(stub.Register())
            except Exception as error:  # noqa: BLE001 - any error: without this link clients do not find the broker
                was_connected = self.connected
                cause = self._explained(error) if isinstance(error, grpc.RpcError) else error
                self._lost(cause)
                # Retry at the shortest interval after a link that worked, otherwise with backoff.
                retry_s = _FIRST_RETRY_S if was_connected else min(2 * retry_s, _MAX_RETRY_S)
                await _wait(self._leaving, retry_s)

    async def _hold(self, stream: _Stream) -> None:
        answers: asyncio.Queue[nameserver_pb2.RegisterResponse] = asyncio.Queue()
        try:
            # Reads continuously, not only for an answer, to notice a broken stream at once, and why it broke.
            await until_first_ends(
                {
                    f"register-read-{self.address}": self._read(stream, answers),
                    f"register-talk-{self.address}": self._talk(stream, answers),
                }
            )
        finally:
            stream.cancel()

    async def _read(self, stream: _Stream, answers: asyncio.Queue[nameserver_pb2.RegisterResponse]) -> None:
        async for answer in stream:
            answers.put_nowait(check_answer(answer, f"name server {self.address}"))
        if not self._leaving.is_set():
            raise Unavailable(f"name server {self.address} ended the registration")

    async def _talk(self, stream: _Stream, answers: asyncio.Queue[nameserver_pb2.RegisterResponse]) -> None:
        name, sent_version = "", -1
        while not self._leaving.is_set():
            self._wake.clear()
            # Builds the topic table, which may be large, only to send it.
            if self._version() == sent_version:
                request = nameserver_pb2.RegisterRequest(
                    broker_name=name, data_version=sent_version, heartbeat_only=True
                )
            else:
                request = self._describe()
            try:
                async with asyncio.timeout(self._timeout_s):
                    await stream.write(request)
                    answer = await answers.get()
            except TimeoutError:
                raise DeadlineExceeded(f"no answer within {self._timeout_s} s") from None
            except (grpc.RpcError, asyncio.InvalidStateError):
                break  # the stream is over, and the reader knows why
            name, sent_version = request.broker_name, request.data_version
            self._found()
            await _wait(self._wake, min(self._heartbeat_s, answer.expire_after_ms / 3000))
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
            if sent_version >= 0:
                farewell = nameserver_pb2.RegisterRequest(
                    broker_name=name, data_version=sent_version, heartbeat_only=True, leaving=True
                )
                await stream.write(farewell)
            await stream.done_writing()
        await asyncio.Event().wait()  # until the reader sees the end of the stream, or `stop` cancels this

    def _found(self) -> None:
        if not self._outage.worked("registered nameserver=%s", self.address) and not self.connected:
            log.info("registered nameserver=%s", self.address)
        self.connected = self._was_registered = True

    def _lost(self, cause: Exception) -> None:
        if not self._leaving.is_set():
            message = "not registered, trying again nameserver=%s reason=%s"
            self._outage.failed(message, self.address, cause, cause=cause)
        self.connected = False


async def _wait(event: asyncio.Event, longest_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(longest_s):
            await event.wait()
