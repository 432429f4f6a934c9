"""The sessions of one member to brokers: opened, kept alive, opened again when they break."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from minimq.connection.connection import Connection
from minimq.connection.stream import Stream
from minimq.receiving.assignment import Heartbeats
from minimq.transport.client_log import client_logger
from minimq_common.errors import MiniMQError, NotAuthenticated, TransportError
from minimq_common.outage_log import OutageLog
from minimq_proto.v1 import broker_pb2

log = client_logger(__name__)

_RECONNECT_S = 0.5
_LEAVE_S = 2.0

Session = Stream[broker_pb2.SessionRequest, broker_pb2.SessionEvent]
Post = Callable[[Callable[[], None]], None]


@dataclass(slots=True)
class _Broker:
    """A broker to which a session is kept."""

    name: str
    session: Session | None = None
    #: To which the latest session leads.
    address: str = ""
    #: How many sessions there were, so that late events of an earlier one are recognized.
    number: int = 0
    retry_at: float = 0.0
    beat_at: float = 0.0
    beats: Heartbeats = field(default_factory=Heartbeats)
    #: Whether any session has brought something.
    greeted: bool = False
    outage: OutageLog = field(default_factory=lambda: OutageLog(log))


class BrokerSessions:
    """Sessions by broker name. Used by the member's task alone; streams reach it through `post`."""

    def __init__(
        self,
        connection: Connection,
        master_of: Callable[[str], str | None],
        post: Post,
        on_event: Callable[[str, broker_pb2.SessionEvent], None],
        on_refusal: Callable[[str, MiniMQError], None],
        on_break: Callable[[str, MiniMQError | None], None],
        heartbeat_s: float,
    ) -> None:
        self._connection = connection
        self._master_of = master_of
        self._post = post
        self._on_event = on_event
        self._on_refusal = on_refusal
        self._on_break = on_break
        self._heartbeat_s = heartbeat_s
        self._brokers: dict[str, _Broker] = {}

    def add(self, names: Iterable[str]) -> None:
        """Keep sessions to these brokers as well; `keep` opens them."""
        for name in names:
            self._brokers.setdefault(name, _Broker(name))

    def keep(self, now: float) -> Iterator[str]:
        """Send heartbeats, and open sessions that are missing; yield each that was opened, to be spoken to first."""
        for broker in list(self._brokers.values()):
            self._leave_for_master(broker)
            if broker.session is None and now >= broker.retry_at:
                if self._open(broker, now):
                    yield broker.name
                    self._beat(broker, now)
            elif broker.session is not None and now >= broker.beat_at:
                self._beat(broker, now)

    def address(self, name: str) -> str:
        """Return the address to which the latest session with a broker leads."""
        return self._brokers[name].address

    def open_names(self) -> list[str]:
        """Return the names of the brokers to which there is a session."""
        return [broker.name for broker in self._brokers.values() if broker.session is not None]

    def answered_at(self, name: str) -> float:
        """Return when the latest request was sent to a broker of which it is known that the broker has got it."""
        return self._brokers[name].beats.answered_at

    def send(self, name: str, request: broker_pb2.SessionRequest) -> None:
        """Send a request. It is dropped when there is no session; all is said again when there is one."""
        broker = self._brokers.get(name)
        if broker is not None and broker.session is not None:
            broker.session.send(request)

    async def close(self, goodbye: broker_pb2.SessionRequest) -> None:
        """Say a last word to all brokers and end the sessions."""
        sessions = [broker.session for broker in self._brokers.values() if broker.session is not None]
        for session in sessions:
            session.send(goodbye)
            session.finish()
        for session in sessions:
            if not await session.wait_ended(_LEAVE_S):
                session.cancel()

    def _open(self, broker: _Broker, now: float) -> bool:
        address = self._master_of(broker.name)
        broker.retry_at = now + _RECONNECT_S
        if address is None:
            return False
        broker.address = address
        broker.number += 1
        number = broker.number
        broker.beats.begin(now)
        broker.session = Stream(
            self._connection,
            address,
            lambda stub: stub.Session,
            lambda event: self._post(lambda: self._hear(broker, number, event)),
            lambda error: self._post(lambda: self._ended(broker, number, error)),
        )
        return True

    def _leave_for_master(self, broker: _Broker) -> None:
        """End the session with a master that is none any more; without a master in the route it ends by itself."""
        if broker.session is None:
            return
        address = self._master_of(broker.name)
        if address is not None and address != broker.address:
            log.info("group: the master is another one broker=%s address=%s", broker.name, address)
            session, broker.session = broker.session, None
            broker.number += 1
            broker.retry_at = 0.0
            session.cancel()
            self._on_break(broker.name, None)

    def _beat(self, broker: _Broker, now: float) -> None:
        heartbeat = broker_pb2.Heartbeat(number=broker.beats.send(now))
        self.send(broker.name, broker_pb2.SessionRequest(heartbeat=heartbeat))
        broker.beat_at = now + self._heartbeat_s

    def _hear(self, broker: _Broker, number: int, event: broker_pb2.SessionEvent) -> None:
        if broker.number != number:
            return
        broker.greeted = True
        broker.outage.worked("group: session is back broker=%s address=%s", broker.name, broker.address)
        if event.HasField("heartbeat"):
            broker.beats.answered(event.heartbeat.number)
        self._on_event(broker.name, event)

    def _ended(self, broker: _Broker, number: int, error: MiniMQError | None) -> None:
        if broker.number != number:
            return
        broker.session = None
        if error is None or isinstance(error, TransportError):
            broker.outage.failed(
                "group: session is broken, trying again broker=%s address=%s reason=%s",
                broker.name,
                broker.address,
                error or "the broker has ended it",
                cause=error,
            )
        self._on_break(broker.name, error)
        # Later a broker may take this client for another one: it has not noticed yet that the last session broke.
        # A key that is not known, however, stays so until there is another one.
        if error is not None and (not broker.greeted or isinstance(error, NotAuthenticated)):
            self._on_refusal(broker.name, error)
