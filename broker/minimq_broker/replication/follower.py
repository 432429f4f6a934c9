"""The slave's side of replication: receive the master's entries, write and acknowledge them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import grpc
import grpc.aio

from minimq_broker.backup.copying import take_copy
from minimq_broker.calls.engine import Engine
from minimq_broker.commit.jobs import ReplicaJob
from minimq_broker.commit.off_loop import uncancellable
from minimq_broker.features.registry import versions
from minimq_broker.log.clock import lease_clock
from minimq_broker.replication.frames import FIRST_FRAME_TIMEOUT_S, HEARTBEAT_S, SILENCE_S, next_frame
from minimq_broker.replication.pauses import Break, FollowBackoff
from minimq_broker.replication.term_lease import Confirmations
from minimq_common.errors import BrokerConflict, CopyNeeded, DeadlineExceeded, StoreError, Unavailable
from minimq_common.replicas.replica_set import ReplicaReport
from minimq_common.retry_log import RetryLog
from minimq_common.security.channel_security import PLAIN, ChannelSecurity
from minimq_common.wire import rpc
from minimq_proto.v1 import replication_pb2, replication_pb2_grpc

if TYPE_CHECKING:
    from minimq_broker.replication.frames import ReplicaStream
    from minimq_proto.v1.replication_pb2_grpc import ReplicationAsyncStub

log = logging.getLogger(__name__)

#: Maximum bytes of entries that wait for the disk; beyond this the slave stops reading from the network.
_PENDING_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class MasterRef:
    """The master that a slave follows in one term, and the slave's own report."""

    own: ReplicaReport
    term: int
    address: str


class Follower:
    """Follows one master until it is stopped. Belongs to the loop of the engine."""

    def __init__(
        self,
        engine: Engine,
        master: MasterRef,
        confirmations: Confirmations,
        outage: RetryLog | None = None,
        security: ChannelSecurity = PLAIN,
    ) -> None:
        self.master = master
        self.confirmations = confirmations
        self._security = security
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._anew = False  # the log cannot be continued: copy everything
        self.is_ended = False
        self._outage = outage or RetryLog(log)
        self._task: asyncio.Task[None] | None = None
        self._intake: _EntryReceiver | None = None
        #: The last reported end of the master's log; None while it is not known.
        self.master_end: int | None = None
        self.connected = False
        self._found_at = self._loop.time()

    @property
    def peer(self) -> str:
        return f"master {self.master.address}"

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"follow-{self.master.term}")

    def end(self) -> None:
        """Acknowledge nothing from now on. Must be followed by `stop`. Idempotent."""
        self.is_ended = True
        if self._task is not None:
            self._task.cancel()

    def copy_if_damaged(self) -> None:
        """Copy everything from the master if a segment of this slave is damaged."""
        if self._intake is not None and (damage := self._engine.store.damage):
            start, reason = next(iter(damage.items()))
            self._intake.fail(CopyNeeded(f"the segment {start} is damaged ({reason}): everything is copied again"))

    async def stop(self) -> None:
        """End the stream and wait until none of its entries is on the way to the log. Idempotent."""
        self.end()
        task, self._task = self._task, None
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        pauses = FollowBackoff()
        while not self.is_ended:
            try:
                await self._engine.ensure_open()
                async with rpc.open_aio_channel(self.master.address, self._security.trust()) as channel:
                    stub = cast("ReplicationAsyncStub", replication_pb2_grpc.ReplicationStub(channel))
                    await self._follow(stub)
            except Exception as error:  # noqa: BLE001 - the slave retries after any error
                followed_s = self._loop.time() - self._found_at if self.connected else 0.0
                pause_s = pauses.after(self._lost(error), followed_s)
                if not self.is_ended:
                    await asyncio.sleep(pause_s)

    def _lost(self, error: BaseException) -> Break:
        self.connected = False
        self._anew = self._anew or isinstance(error, CopyNeeded)
        cause = rpc.from_rpc_error(error, self.peer) if isinstance(error, grpc.RpcError) else error
        if isinstance(cause, asyncio.InvalidStateError):  # a write to a stream that had ended
            cause = Unavailable(f"{self.peer} has ended the stream")
        message = "replication: stream broken, trying again master=%s reason=%s"
        self._outage.failed(message, self.master.address, cause, cause=cause)
        if isinstance(cause, (Unavailable, DeadlineExceeded, TimeoutError)):
            return Break.UNREACHED
        return Break.REJECTED if isinstance(error, grpc.RpcError) else Break.OWN

    async def _follow(self, stub: ReplicationAsyncStub) -> None:
        stream = stub.Replicate()
        try:
            async with asyncio.timeout(SILENCE_S):
                await stream.write(replication_pb2.ReplicaRequest(follow=self._introduction()))
            frame = await next_frame(stream, FIRST_FRAME_TIMEOUT_S, self.peer)
            self._check_same_log(frame)
            if frame.HasField("go_on") and frame.go_on.position == self._engine.store.end:
                self._found()
                self._intake = _EntryReceiver(self, self._engine, stream)
                await self._intake.run(frame)
        finally:
            self._intake = None
            stream.cancel()
        # Both may take longer than a slave may be silent, so it reconnects afterwards.
        if frame.HasField("go_on"):
            await self._cut(frame.go_on.position)
            return
        await take_copy(self._engine, stub, self.peer, frame.log_id)
        self._anew = False

    def _introduction(self) -> replication_pb2.Follow:
        store, own = self._engine.store, self.master.own
        return replication_pb2.Follow(
            cluster=own.cluster,
            broker_name=own.broker_name,
            replica_id=own.replica_id,
            run=own.run,
            address=own.address,
            term=self.master.term,
            terms=[replication_pb2.TermStart(term=start.term, position=start.position) for start in store.state.terms],
            log_start=store.log.start,
            log_end=store.end,
            log_id=store.state.log_id,
            anew=self._anew or bool(self._engine.store.damage),
            features=[replication_pb2.Feature(name=name, version=version) for name, version in versions().items()],
        )

    def _check_same_log(self, frame: replication_pb2.ReplicaFrame) -> None:
        store, term = self._engine.store, frame.go_on.term
        name, mine, theirs = self.master.own.broker_name, store.state.log_id, frame.log_id
        remedy = "give it the data directory of this replica, or an empty one"
        if frame.go_on.term_entry and term.position >= store.log.complete_from:
            # Copies of one log keep its identity even if they diverged under different masters, so compare an entry.
            if store.entries(term.position, 1) != [frame.go_on.term_entry]:
                raise BrokerConflict(
                    f"the log of this broker, {mine}, is not a copy of that of {name}, {theirs}: "
                    f"its term {term.term} begins with another entry; {remedy}"
                )
        elif store.end and mine and theirs and mine != theirs:
            raise BrokerConflict(
                f"the log of this broker, {mine}, is not a copy of that of {name}, {theirs}: nothing is deleted here; "
                f"{remedy}"
            )

    async def _cut(self, position: int) -> None:
        store = self._engine.store
        if position > store.end:
            raise CopyNeeded(f"the master continues at {position}, but this log ends at {store.end}")
        if position < store.confirmed:
            log.error(
                "replication: acknowledged messages are lost, since the master does not have them "
                "from=%d to=%d confirmed=%d",
                store.end,
                position,
                store.confirmed,
            )
        else:
            log.warning("replication: truncating what the master does not have from=%d to=%d", store.end, position)
        await self._engine.truncate(position)

    def _found(self) -> None:
        message, values = "replication: following master=%s term=%d", (self.master.address, self.master.term)
        if not self._outage.worked(message, *values):
            log.info(message, *values)
        self.connected, self._found_at = True, self._loop.time()


class _EntryReceiver:
    """Writes and acknowledges the entries of one stream. Frames keep arriving while earlier ones are synced."""

    def __init__(self, follower: Follower, engine: Engine, stream: ReplicaStream) -> None:
        self._follower = follower
        self._engine = engine
        self._stream = stream
        self._store = engine.store
        self._loop = asyncio.get_running_loop()
        self._position = self._store.end
        self._synced = self._store.end
        self._pending_bytes = 0
        self._settled = asyncio.Event()  # something was written, or failed
        self._news = asyncio.Event()  # there is something to acknowledge
        #: `asked_at` of the latest frame to confirm, and when it was received; 0 if there is none.
        self._asked_at, self._received_at = 0, 0.0
        self._failure: Exception | None = None

    def fail(self, failure: Exception) -> None:
        """Make `run` raise `failure`."""
        self._failure = self._failure or failure
        self._stream.cancel()  # the reader of the next frame gets the error
        self._settled.set()

    async def run(self, frame: replication_pb2.ReplicaFrame) -> None:
        """Process frames until the stream breaks, which raises. Waits for pending writes before it does."""
        acknowledging = asyncio.create_task(self._acknowledge(), name="follow-acknowledge")
        try:
            while True:
                await self._take(frame)
                if acknowledging.done():
                    acknowledging.result()
                frame = await next_frame(self._stream, SILENCE_S, self._follower.peer)
        except (Exception, asyncio.CancelledError):
            if self._failure is not None:  # `fail` cancelled the stream, which may surface as any error
                raise self._failure from None
            raise
        finally:
            acknowledging.cancel()
            await uncancellable(asyncio.gather(self._settle(), acknowledging, return_exceptions=True))

    async def _take(self, frame: replication_pb2.ReplicaFrame) -> None:
        if frame.entries:
            if frame.position != self._position:
                raise StoreError(f"the master sent entries at {frame.position}, {self._position} was expected")
            job = ReplicaJob(frame.position, frame.entries, done=self._written)
            self._pending_bytes += job.size
            self._position += job.size
            self._store.writer.submit(job)
        self._follower.master_end = frame.end
        if frame.asked_at:
            self._asked_at, self._received_at = frame.asked_at, lease_clock()
            self._news.set()
        self._store.confirmation.confirm(frame.confirmed)
        while self._pending_bytes > _PENDING_BYTES and self._failure is None:
            self._settled.clear()
            await self._settled.wait()
        if self._failure is not None:
            raise self._failure

    def _written(self, job: ReplicaJob) -> None:
        self._pending_bytes -= job.size
        if job.error is not None:
            self.fail(job.error)
        else:
            self._synced = job.position + job.size
        self._settled.set()
        self._news.set()

    async def _settle(self) -> None:
        while self._pending_bytes:
            self._settled.clear()
            await self._settled.wait()

    async def _acknowledge(self) -> None:
        while not self._follower.is_ended:
            self._news.clear()
            async with asyncio.timeout(SILENCE_S):
                await self._stream.write(self._acknowledgement())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._news.wait()

    def _acknowledgement(self) -> replication_pb2.ReplicaRequest:
        request = replication_pb2.ReplicaRequest(synced=self._synced)
        follower = self._follower
        if self._asked_at and follower.confirmations.confirm(follower.master.term, self._received_at):
            request.confirms, self._asked_at = self._asked_at, 0
        return request
