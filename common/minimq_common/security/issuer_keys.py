"""The sources of the keys of an issuer: a watched file, or a URL that a thread fetches."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from minimq_common.errors import InvalidArgument, SystemBusy, Unavailable
from minimq_common.security.issuer import Issuer, is_url
from minimq_common.security.tokens import MAX_SET_BYTES, TokenKey, TokenKeys, parse_keys
from minimq_common.security.watched import Watched

log = logging.getLogger(__name__)

#: Seconds between regular fetches.
_REFRESH_S = 300.0
#: Minimum seconds between fetches if a token names an unknown key, or the last fetch failed.
_AGAIN_S = 2.0
#: Seconds after a fetch in which a missing key is not fetched again. Caches of an issuer may show new keys late.
_MISSING_S = 30.0
#: Unknown key ids for which the time of the first request is remembered.
_MAX_MISSING = 256
_NO_KEYS: TokenKeys = {}
#: Retry delay for callers whose key is being fetched.
_COME_BACK_S = 0.1


def keys_of(name: str, issuer: Issuer, folder: Path | None) -> FileKeys | FetchedKeys:
    """Return the keys of an issuer, and start to refresh them."""
    folder = folder or Path()
    if is_url(issuer.jwks):
        return FetchedKeys(name, issuer.jwks, folder / issuer.ca if issuer.ca else None)
    return FileKeys(name, folder / issuer.jwks)


class FileKeys:
    """Keys in a file, which is checked at most once a second, on use."""

    def __init__(self, name: str, path: Path) -> None:
        self._name = name
        self._path = path
        self._file = Watched([path], lambda found: self._parse(found[0]), most_bytes=MAX_SET_BYTES, initial=_NO_KEYS)

    def keys(self) -> TokenKeys:
        """Return the keys in the file; empty before they could be read."""
        return self._file.get()

    def find(self, key_id: str) -> TokenKey | None:
        """Return a key, or None. Raises `Unavailable` if the file could never be read."""
        keys = self.keys()
        if keys is _NO_KEYS:
            raise Unavailable(
                f"the keys of issuer {self._name} cannot be read here: the log of the server has the reason"
            )
        return keys.get(key_id)

    def stop(self) -> None:
        """Do nothing."""

    def _parse(self, data: bytes) -> TokenKeys:
        try:
            return parse_keys(data)
        except InvalidArgument as error:
            raise InvalidArgument(f"{self._path} cannot be used: {error.message}") from None


class FetchedKeys:
    """Keys at a URL, fetched by a thread of its own. Thread-safe.

    The known keys stay valid while the issuer does not answer, or answers with unusable data.
    """

    def __init__(
        self,
        name: str,
        url: str,
        ca: Path | None,
        *,
        refresh_s: float = _REFRESH_S,
        again_s: float = _AGAIN_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._url = url
        self._ca = ca
        self._refresh_s = refresh_s
        self._again_s = again_s
        self._clock = clock
        self._keys: TokenKeys = {}
        self._complaint = ""
        self._turn = threading.Condition()
        #: When an unknown key id was first requested.
        self._missing: OrderedDict[str, float] = OrderedDict()
        self._began_at = self._completed_from = float("-inf")  # start of the last fetch, and of the last completed one
        self._is_fetching = True
        self._is_wanted = self._is_over = False
        threading.Thread(target=self._run, name=f"minimq-issuer-{name}", daemon=True).start()

    def keys(self) -> TokenKeys:
        """Return the known keys; empty before the first fetch."""
        return self._keys

    def find(self, key_id: str) -> TokenKey | None:
        """Return a key, or None if a fetch in the last 30 seconds that began after the first request did not find it.

        Raises `Unavailable` or `SystemBusy`.
        """
        found = self._keys.get(key_id)
        if found is not None:
            return found
        now = self._clock()
        with self._turn:
            since = self._missing.setdefault(key_id, now)
            self._missing.move_to_end(key_id)
            if len(self._missing) > _MAX_MISSING:
                self._missing.popitem(last=False)
            if since < self._completed_from and now < self._completed_from + _MISSING_S:
                if self._complaint:
                    raise Unavailable(
                        f"the keys of issuer {self._name} cannot be fetched here: the log of the server has the reason"
                    )
                return None
            self._is_wanted = True
            self._turn.notify_all()
            wait_s = _COME_BACK_S if self._is_fetching else max(_COME_BACK_S, self._began_at + self._again_s - now)
        text = f"the keys of issuer {self._name} are being fetched, since the one of this token is not among them"
        raise SystemBusy(text, retry_after_s=wait_s)

    def stop(self) -> None:
        """Tell the thread to end; a running fetch is completed first. Does not wait."""
        with self._turn:
            self._is_over = True
            self._turn.notify_all()

    def _run(self) -> None:
        from minimq_common.security.key_fetch import fetch  # imported here because few servers need it

        while not self._is_over:
            with self._turn:
                began = self._began_at = self._clock()
                self._is_fetching, self._is_wanted = True, False
            try:
                found = parse_keys(fetch(self._url, self._ca))
            except InvalidArgument as error:
                self._note(error.message)
            except Exception as error:  # if the thread ended, revoked keys would stay valid forever
                log.exception("access: keys were not fetched issuer=%s", self._name)
                self._note(f"{type(error).__name__}: {error}"[:500])
            else:
                self._take(found)
            with self._turn:
                self._completed_from, self._is_fetching = began, False
                self._rest(began)

    def _rest(self, began: float) -> None:
        while not self._is_over and (left_s := self._due(began) - self._clock()) > 0:
            self._turn.wait(left_s)

    def _due(self, began: float) -> float:
        return began + (self._again_s if self._is_wanted or self._complaint else self._refresh_s)

    def _take(self, found: TokenKeys) -> None:
        with self._turn:
            former, self._keys = self._keys, found
            for key_id in found:
                self._missing.pop(key_id, None)
        if former.keys() != found.keys() or self._complaint:
            log.info("access: keys are in use issuer=%s keys=%d", self._name, len(found))
        self._complaint = ""

    def _note(self, reason: str) -> None:
        if reason != self._complaint:
            self._complaint = reason
            log.error(
                "access: keys cannot be fetched, those that are known stand issuer=%s known=%d reason=%r",
                self._name,
                len(self._keys),
                reason,
            )
