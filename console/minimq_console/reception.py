"""Knows visitors: everybody on a cluster without access control, else who has signed in."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from hmac import compare_digest

from minimq_common.errors import InvalidArgument, NotAuthenticated
from minimq_common.security.certificates import Trust
from minimq_common.security.credentials import Credentials
from minimq_common.security.credentials_file import CredentialsFile, about_user, written
from minimq_common.security.user_key import parse_key
from minimq_console.attempts import Attempts
from minimq_console.form_tokens import SECRET_BYTES, FormTokens
from minimq_console.observer import Observer
from minimq_console.sign_ins import SignIn, SignIns
from minimq_console.visitor import Visitor

#: Seconds between two looks for sign-ins whose time is over.
_SWEEP_S = 30.0
#: Of who has a name or a key that is wrong: which of the two is not said.
_UNKNOWN = "no user of this cluster has this name and this key: look at both, and whether the key is still in force"


class Reception:
    """Knows visitors. Used on the event loop."""

    def __init__(
        self,
        everybody: Observer | None,
        credentials: CredentialsFile | None = None,
        open_observer: Callable[[Credentials], Observer] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._everybody = everybody
        self._credentials = credentials
        self._open_observer = open_observer
        self._clock = clock
        self._sign_ins: SignIns[Observer] = SignIns()
        self._attempts = Attempts()
        self._closing: set[asyncio.Task[None]] = set()
        self.tokens = FormTokens(secrets.token_bytes(SECRET_BYTES))

    @property
    def asks_for_keys(self) -> bool:
        """True if visitors have to sign in."""
        return self._everybody is None

    def visitor(self, browser: str, address: str) -> Visitor | None:
        """Return who uses a browser, by the id in its cookie; None if a sign-in is needed first."""
        if self._everybody is not None:
            return Visitor(browser, "", self._everybody, address)
        sign_in = self._find(browser)
        return None if sign_in is None else Visitor(browser, sign_in.user, sign_in.view, address)

    @asynccontextmanager
    async def serving(self, browser: str) -> AsyncIterator[None]:
        """Count a request of a browser within the block."""
        sign_in = self._find(browser)
        if sign_in is None:
            yield
            return
        self._sign_ins.begin_request(sign_in)
        try:
            yield
        finally:
            self._sign_ins.end_request(sign_in, self._clock())

    async def sign_in(self, name: str, key: str, address: str) -> str:
        """Let a user in, and return the id for the cookie of the browser."""
        now_s = self._clock()
        self._attempts.check(address, now_s)
        observer = await asyncio.to_thread(self._let_in, name, key)
        browser = new_id()
        try:
            self._sign_ins.add(browser, name, observer, self._clock())
        except BaseException:
            await asyncio.to_thread(observer.close)
            raise
        self._attempts.succeeded(address, now_s)
        observer.start()
        self._close_ended()
        return browser

    def sign_out(self, browser: str) -> str:
        """End the sign-in of a browser; return the name of its user, empty if there was none."""
        sign_in = self._find(browser)
        self._sign_ins.end(browser)
        self._close_ended()
        return "" if sign_in is None else sign_in.user

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """End sign-ins whose time is over, within the block, and all of them at its end."""
        sweeping = asyncio.create_task(self._sweep(), name="minimq-console-sweep")
        try:
            yield
        finally:
            sweeping.cancel()
            with suppress(asyncio.CancelledError):
                await sweeping
            self._sign_ins.end_all()
            self._close_ended()
            await asyncio.gather(*self._closing)

    def _let_in(self, name: str, key: str) -> Observer:
        assert self._credentials is not None
        assert self._open_observer is not None
        try:
            bearer = parse_key(key.strip())
        except InvalidArgument:
            raise NotAuthenticated(_UNKNOWN) from None
        trust = self._credentials.trust()
        text = written((), Trust(trust.roots, None, bearer), about_user(name))
        observer = self._open_observer(Credentials.from_text(text))
        try:
            user, _ = observer.admin.own_rights(())
            if not user or not compare_digest(user.encode(), name.encode()):
                raise NotAuthenticated(_UNKNOWN)
        except NotAuthenticated:
            observer.close()
            raise NotAuthenticated(_UNKNOWN) from None
        except BaseException:
            observer.close()
            raise
        return observer

    def _find(self, browser: str) -> SignIn[Observer] | None:
        found = self._sign_ins.find(browser, self._clock()) if browser else None
        self._close_ended()
        return found

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self._sign_ins.sweep(self._clock())
            self._close_ended()

    def _close_ended(self) -> None:
        for each in self._sign_ins.take_ended():
            task = asyncio.create_task(asyncio.to_thread(each.view.close))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


def new_id() -> str:
    """Return a random id for the cookie of a browser."""
    return secrets.token_urlsafe(32)
