"""The gate for tokens: it knows the issuers in force and their keys, and checks no more tokens than it has time for."""

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
from minimq_common.security.issuer_keys import IssuerKeys, keys_of
from minimq_common.security.tokens import RefusedToken, TokenKeys, claim_of, verify

log = logging.getLogger(__name__)

#: Tokens that are checked in a second: of one peer, and of all together. Those that were verified are no matter.
CHECKS_OF_PEER, CHECKS_OF_ALL = 50, 500
#: Peers of which the server knows how many tokens they have shown: those that came last.
_MOST_PEERS = 1_000
_NETWORK_BITS = 64


class TokenGate:
    """Checks tokens. Lives on one event loop."""

    def __init__(
        self, folder: Path | None, now_ms: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder = folder
        self._now_ms = now_ms
        self._clock = clock
        self._issuers: dict[str, tuple[Issuer, IssuerKeys]] = {}
        self._all = ByteRate(CHECKS_OF_ALL, clock)
        self._peers: OrderedDict[str, ByteRate] = OrderedDict()
        self._is_lacking_library = False
        self._seen: dict[str, TokenKeys] = {}

    @property
    def is_open(self) -> bool:
        """True if there are issuers."""
        return bool(self._issuers) or self._is_lacking_library

    def follow(self, issuers: Mapping[str, Issuer]) -> None:
        """Go by some issuers from now on; the keys of those that were there before are kept."""
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
        """Return a token that is right."""
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
        """Return whether keys of issuers were replaced since this was asked for the last time."""
        found = {name: keys.keys() for name, (_, keys) in self._issuers.items()}
        former, self._seen = self._seen, found
        return any(former.get(name) is not keys for name, keys in found.items())

    def stop(self) -> None:
        """Follow no keys any more."""
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
    except ValueError:  # a module that was set to None
        return False
