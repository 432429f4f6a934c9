"""Certificates in files of their own, for connections to servers that are not minimq's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from minimq_common.security.certificates import Pair, Trust, check_pair, check_roots
from minimq_common.security.channel_security import PLAIN, ChannelSecurity
from minimq_common.security.watched import Watched


class TrustedFiles:
    """The CAs in one file, and a certificate with its key in two others. Thread-safe; files may be replaced."""

    def __init__(self, roots: Path, pair: tuple[Path, Path] | None) -> None:
        self._roots = roots
        self._files = Watched([roots, *(pair or ())], self._make)

    def trust(self, *, at_once: bool = False) -> Trust:
        """Return whom a channel trusts and what it shows, as it is now."""
        return self._files.get(at_once=at_once)

    def _make(self, found: Sequence[bytes]) -> Trust:
        roots, *rest = found
        check_roots(roots, str(self._roots))
        pair = Pair(*rest) if rest else None
        if pair is not None:
            check_pair(pair, "the certificate and its key")
        return Trust(roots, pair)


def security_of_files(roots: Path | None, certificate: Path | None, key: Path | None) -> ChannelSecurity:
    """Return the security that some options name. Raises `InvalidArgument`."""
    if roots is None:
        return PLAIN
    return TrustedFiles(roots, (certificate, key) if certificate is not None and key is not None else None)
