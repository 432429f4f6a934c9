"""The visitors of the console: everybody on a cluster without access control, else those who have signed in."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from minimq import Admin, Cluster
from minimq.consuming.range_reader import RangeOptions, RangeReader
from minimq.local.access_file import AccessFile
from minimq_common.errors import InvalidArgument, NotAuthenticated
from minimq_common.security.access_policy import Policy
from minimq_common.security.certificates import Trust
from minimq_common.security.credentials import Credentials, CredentialsArgument
from minimq_common.security.credentials_file import CredentialsFile, about_user, written
from minimq_common.security.user_key import UserKey, parse_key
from minimq_common.serving.periodic import PeriodicTask
from minimq_console.produce import Sender
from minimq_console.sampler import Sampler
from minimq_console.sign_ins import Attempts, SignIns

log = logging.getLogger(__name__)

_SWEEP_INTERVAL_S = 30.0
#: Timeout in seconds of a call of a page: two attempts fit into the time of a page.
_PAGE_CALL_S = 0.85
#: Timeout in seconds of a call of the sampler: no page waits for it.
_SAMPLER_CALL_S = 2.0
#: Timeout in seconds of a call of an action, which does not delay pages.
_ACTION_CALL_S = 10.0
_UNKNOWN = "no user of this cluster has this key: check it, and whether it has expired or was revoked"


class Observer:
    """Reads and changes a cluster with the rights of one user. Thread-safe."""

    def __init__(
        self,
        nameserver: str | Sequence[str] | None,
        credentials: CredentialsArgument | None = None,
        interval_s: float = 2.0,
    ) -> None:
        self.cluster = Cluster(nameserver, credentials=credentials)
        self.admin = Admin(self.cluster, timeout_s=_PAGE_CALL_S)
        self.changer = Sender(self.cluster, _ACTION_CALL_S)
        self._patient = Admin(self.cluster, timeout_s=_SAMPLER_CALL_S)
        self.reader = RangeReader(self.cluster, RangeOptions(answer_timeout_s=_PAGE_CALL_S, max_wait_s=_PAGE_CALL_S))
        self.sampler = Sampler(self._patient, interval_s)

    def start(self) -> None:
        self.sampler.start()

    def close(self) -> None:
        """End the sampler, and close all connections. Idempotent."""
        self.sampler.stop()
        self.reader.close()
        self._patient.close()
        self.changer.close()
        self.admin.close()
        self.cluster.close()


@dataclass(frozen=True, slots=True)
class Visitor:
    #: Random id in the session of the browser. No `repr` shows it.
    browser: str = field(repr=False)
    #: The user whose key is used for calls, or "key ID" if the console does not know the users; empty on a cluster
    #: without access control.
    user: str
    observer: Observer
    #: Returns False once the sign-in has ended; streams have to check it.
    is_signed_in: Callable[[], bool]


class Visitors:
    """Signs visitors in and out. Used on the event loop. Visitors with the same key share an observer."""

    def __init__(
        self,
        everybody: Observer | None,
        credentials: CredentialsFile | None = None,
        open_observer: Callable[[Credentials], Observer] | None = None,
        users: AccessFile | None = None,
    ) -> None:
        self._everybody = everybody
        self._credentials = credentials
        self._open_observer = open_observer
        self._users = users
        #: A view is the SHA-256 of a key.
        self._sign_ins: SignIns = SignIns()
        self._observers: dict[str, Observer] = {}
        self._attempts = Attempts()
        self._entering: dict[str, asyncio.Task[str]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def asks_for_keys(self) -> bool:
        return self._everybody is None

    @asynccontextmanager
    async def visit(self, browser: str, bearer: str, host: str) -> AsyncIterator[Visitor | None]:
        """Yield the visitor of a request; None before a sign-in. Raises `MinimqError` if the bearer is rejected."""
        if self._everybody is not None:
            yield Visitor(browser, "", self._everybody, lambda: True)
            return
        sign_in_id = f"bearer {_digest(bearer)}" if bearer else browser
        if bearer and self._sign_ins.find(sign_in_id, time.monotonic()) is None:
            await self._sign_in_once(sign_in_id, bearer, host)
        sign_in = self._sign_ins.find(sign_in_id, time.monotonic())
        if sign_in is None:
            yield None
            return
        sign_in.requests += 1
        try:
            yield Visitor(
                browser,
                sign_in.user,
                self._observers[sign_in.view],
                lambda: self._sign_ins.find(sign_in_id, time.monotonic()) is sign_in,
            )
        finally:
            sign_in.requests -= 1
            sign_in.seen_s = time.monotonic()

    async def sign_in(self, sign_in_id: str, bearer: str, host: str) -> str:
        """Sign in the user of a key; return its name."""
        now_s, view = time.monotonic(), _digest(bearer)
        self._attempts.check(host, now_s)
        key, observer = await asyncio.to_thread(self._connect, bearer.strip())
        try:
            user = await asyncio.to_thread(self._check, key, observer)
            self._sign_ins.add(sign_in_id, user, view, time.monotonic())
        except BaseException:
            await asyncio.to_thread(observer.close)
            raise
        self._attempts.succeeded(host, now_s)
        if self._observers.setdefault(view, observer) is observer:
            observer.start()
        else:
            self._close(observer)
        self._close_unused()
        return user

    async def _sign_in_once(self, sign_in_id: str, bearer: str, host: str) -> None:
        entering = self._entering.get(sign_in_id)
        if entering is None:
            entering = asyncio.create_task(self.sign_in(sign_in_id, bearer, host))
            self._entering[sign_in_id] = entering
            entering.add_done_callback(lambda _: self._entering.pop(sign_in_id))
        await asyncio.shield(entering)

    def sign_out(self, browser: str) -> str:
        """End the sign-in of a browser; return the name of its user, empty if there was none."""
        ended = self._sign_ins.end(browser)
        self._close_unused()
        return "" if ended is None else ended.user

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """End expired sign-ins within the block, and all of them at its end."""
        sweeping = PeriodicTask("sign-ins", self._sweep, _SWEEP_INTERVAL_S, log)
        sweeping.start()
        try:
            yield
        finally:
            await sweeping.stop()
            self._sign_ins.end_all()
            self._close_unused()
            await asyncio.gather(*self._closing)

    def _connect(self, text: str) -> tuple[UserKey, Observer]:
        assert self._credentials is not None
        assert self._open_observer is not None
        try:
            key = parse_key(text)
        except InvalidArgument:
            raise NotAuthenticated(_UNKNOWN) from None
        trust = Trust(self._credentials.trust().roots, None, key)
        return key, self._open_observer(Credentials.from_text(written((), trust, about_user("a visitor"))))

    def _check(self, key: UserKey, observer: Observer) -> str:
        try:
            observer.admin.list_topics()  # every user may
        except NotAuthenticated:
            raise NotAuthenticated(_UNKNOWN) from None
        name = "" if self._users is None else Policy(self._users.read()).user_of(key.hash)
        return name or f"key {key.id}"

    def _sweep(self) -> None:
        self._sign_ins.sweep(time.monotonic())
        self._close_unused()

    def _close_unused(self) -> None:
        for view in self._observers.keys() - self._sign_ins.views:
            self._close(self._observers.pop(view))

    def _close(self, observer: Observer) -> None:
        task = asyncio.create_task(asyncio.to_thread(observer.close))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _digest(bearer: str) -> str:
    return hashlib.sha256(bearer.strip().encode()).hexdigest()
