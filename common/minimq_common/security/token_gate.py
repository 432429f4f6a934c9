"""Checks tokens against the current issuers and their keys, at a limited rate."""

from __future__ import annotations

import importlib.util
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from ipaddress import ip_network
from pathlib import Path
from urllib.parse import unquote

from minimq_common.errors import SystemBusy
from minimq_common.security.caller import ByteRate
from minimq_common.security.issuer import Issuer, VerifiedToken
from minimq_common.security.issuer_keys import FetchedKeys, FileKeys, keys_of
from minimq_common.security.tokens import RefusedToken, TokenKeys, claim_of, verify

log = logging.getLogger(__name__)

#: New tokens checked per second: for one peer, and for all peers. Tokens that are already verified do not count.
CHECKS_OF_PEER, CHECKS_OF_ALL = 50, 500
#: The rate is tracked for this many peers, the most recent ones.
_MOST_PEERS = 1_000
#: IPv6 addresses with the same prefix of this length count as one peer.
_NETWORK_BITS = 64


class TokenGate:
    """Checks tokens. Lives on one event loop."""

    def __init__(
        self, folder: Path | None, now_ms: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder = folder
        self._now_ms = now_ms
        self._clock = clock
        self._issuers: dict[str, tuple[Issuer, FileKeys | FetchedKeys]] = {}
        self._all = ByteRate(CHECKS_OF_ALL, clock)
        self._peers: OrderedDict[str, ByteRate] = OrderedDict()
        self._is_lacking_library = False
        self._seen: dict[str, TokenKeys] = {}

    @property
    def is_open(self) -> bool:
        """True if there are issuers, even if a missing library prevents their use."""
        return bool(self._issuers) or self._is_lacking_library

    def follow(self, issuers: Mapping[str, Issuer]) -> None:
        """Replace the issuers; keeps the keys of issuers that stay."""
        self._is_lacking_library = bool(issuers) and not _has_library()
        if self._is_lacking_library:
            log.error(
                "access: tokens are refused, since a library is missing: `pip install 'minimq[secure]'` for this "
                "server issuers=%s",
                ",".join(issuers),
            )
            issuers = {}
        former, self._issuers = self._issuers, {}
        for name, issuer in issuers.items():
            known = former.pop(name, None)
            if known is not None and (known[0].jwks, known[0].ca) == (issuer.jwks, issuer.ca):
                self._issuers[name] = issuer, known[1]
            else:
                if known is not None:
                    known[1].stop()
                self._issuers[name] = issuer, keys_of(name, issuer, self._folder)
        for _, keys in former.values():
            keys.stop()

    def check(self, text: str, peer: str) -> VerifiedToken:
        """Verify a token.

        Raises `RefusedToken`; `SystemBusy` if too many tokens are checked, or while the key of the token is fetched;
        `Unavailable` if the keys of the issuer cannot be read or fetched.
        """
        if self._is_lacking_library:
            raise RefusedToken(
                "token-library",
                "this server cannot verify tokens: whoever runs it has to install minimq with the extra secure",
            )
        self._count(_host_of(peer))
        wanted, key_id = claim_of(text)
        found = next(((name, *each) for name, each in self._issuers.items() if each[0].issuer == wanted), None)
        if found is None:
            raise RefusedToken(
                "token-issuer",
                "the issuer of the token in these credentials is not known here: `minimq access issuer list` shows "
                "those that are, `minimq access issuer add` adds one",
            )
        name, issuer, keys = found
        key = keys.find(key_id)
        if key is None:
            raise RefusedToken(
                "token-key",
                f"the token in these credentials was signed by a key that issuer {name} does not have, or no longer: "
                "get a new token, or give the servers the new keys of the issuer",
            )
        return verify(text, name, issuer, key, self._now_ms())

    def stands(self, token: VerifiedToken) -> bool:
        """Return whether the issuer of a token still has the key that signed it."""
        known = self._issuers.get(token.issuer_name)
        return known is not None and any(key.print == token.key_print for key in known[1].keys().values())

    def has_other_keys(self) -> bool:
        """Return whether keys of issuers have changed since the last call."""
        found = {name: keys.keys() for name, (_, keys) in self._issuers.items()}
        former, self._seen = self._seen, found
        return any(former.get(name) is not keys for name, keys in found.items())

    def stop(self) -> None:
        """Forget the issuers, and stop to refresh their keys."""
        issuers, self._issuers = self._issuers, {}
        for _, keys in issuers.values():
            keys.stop()

    def _count(self, host: str) -> None:
        own = self._peers.setdefault(host, ByteRate(CHECKS_OF_PEER, self._clock))
        self._peers.move_to_end(host)
        if len(self._peers) > _MOST_PEERS:
            self._peers.popitem(last=False)
        if own.owes_s() or self._all.owes_s():
            text = "too many new tokens are shown to this server: try again in a moment"
            raise SystemBusy(text, limit="tokens")
        own.moved(1)
        self._all.moved(1)


def _host_of(peer: str) -> str:
    kind, _, rest = peer.partition(":")
    host = unquote(rest.rpartition(":")[0])
    if kind == "ipv6":
        with suppress(ValueError):
            return str(ip_network((host.strip("[]").partition("%")[0], _NETWORK_BITS), strict=False))
    return host


def _has_library() -> bool:
    try:
        return all(importlib.util.find_spec(name) is not None for name in ("jwt", "cryptography"))
    except ValueError:  # an entry in `sys.modules` is None
        return False
