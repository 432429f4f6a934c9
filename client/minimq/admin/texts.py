"""Texts that several operations show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from minimq_common.model import OfflineBroker, Permission

#: Maximum bytes of a body that a list or a line shows.
SHOWN_BODY_BYTES = 200


def size_of(size: float) -> str:
    """Return a number of bytes in the most readable unit: "1.2 GB"."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if size >= factor:
            return f"{size / factor:,.1f} {unit}"
    return f"{size:.0f} B"


def duration_of(seconds: float) -> str:
    """Return a time in its two largest units: "3d 4h"."""
    whole = max(int(seconds), 0)
    for unit, factor, next_unit, next_factor in (("d", 86_400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= factor:
            return f"{whole // factor}{unit} {whole % factor // next_factor}{next_unit}"
    return f"{whole}s"


def listing(names: Sequence[str], most: int = 10) -> str:
    """Join names for a sentence: "a, b and c"; after `most` names "and 7 others"."""
    shown = [*names[:most], *([f"{len(names) - most:,} others"] if len(names) > most else [])]
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def left_out(offline: Iterable[OfflineBroker], consequence: str) -> list[str]:
    """Return a line for each broker that is offline, with the consequence, such as "not changed"."""
    from minimq.connection.offline_brokers import state_of  # protobuf takes longer to load than --help

    return [f"{each.broker_name}: {state_of(each)}, {consequence}" for each in offline]


def missing(offline: Iterable[OfflineBroker], unanswered: Mapping[str, str], lacking: str) -> list[str]:
    """Return a line for each broker whose queues are missing: it is offline, or does not answer."""
    from minimq.connection.offline_brokers import describe_offline  # as above

    silent = (
        f"{broker}: does not answer, its queues are {lacking} ({reason})"
        for broker, reason in sorted(unanswered.items())
    )
    return [*describe_offline(offline, lacking), *silent]


def permission_note(permission: Permission) -> str:
    """Return what clients can no longer do, empty if they can do all."""
    sends = [] if permission & Permission.WRITE else ["producers cannot send"]
    reads = [] if permission & Permission.READ else ["consumers cannot read; unread messages stay stored"]
    return ", ".join((*sends, *reads))


def instant_of(when: datetime) -> str:
    """Return a time in UTC: "2026-01-31 08:00:00Z"."""
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"


def shown_body(body: bytes) -> str:
    """Return the start of a body as text, with its size if that is not all."""
    more = f"... ({len(body):,} bytes)" if len(body) > SHOWN_BODY_BYTES else ""
    return body[:SHOWN_BODY_BYTES].decode(errors="backslashreplace") + more


def printable(text: str, keep: str = "") -> str:
    """Escape control characters, which a terminal would obey; those in `keep` stay."""
    if text.isprintable():
        return text
    escaped = ((c, c.encode("unicode_escape", "surrogatepass").decode()) for c in text)
    return "".join(c if c.isprintable() or c in keep else escape for c, escape in escaped)
