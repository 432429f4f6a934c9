"""The fields of forms about the retention of a topic. Pure."""

from __future__ import annotations

from minimq_common.errors import InvalidArgument
from minimq_common.quantities import bytes_of, seconds_of
from minimq_console import texts
from minimq_console.form_field import FormField
from minimq_console.parameters import Parameters

_DEFAULT = "default"
RETENTION = FormField(
    name="retention",
    label="Keep messages for",
    most=40,
    hint="A time such as 12h or 7d, or default: as long as the brokers keep others.",
)
RETENTION_BYTES = FormField(
    name="retention_bytes",
    label="Keep at most, on each broker",
    most=40,
    hint="A size such as 10GiB, or default: no limit of its own.",
)


def retention_of(given: Parameters) -> tuple[float | None, int | None]:
    """Return the retention in seconds and in bytes; 0 for "default", None for what is empty."""
    age, size = RETENTION.text(given), RETENTION_BYTES.text(given)
    seconds = None if not age else 0.0 if age == _DEFAULT else seconds_of(age)
    count = None if not size else 0 if size == _DEFAULT else bytes_of(size)
    if age and (seconds is None or (not seconds and age != _DEFAULT)):
        raise InvalidArgument(f"{RETENTION.label} is {age!r}: give a time such as 12h or 7d, or default")
    if size and (count is None or (not count and size != _DEFAULT)):
        raise InvalidArgument(f"{RETENTION_BYTES.label} is {size!r}: give a size such as 10GiB, or default")
    return seconds, count


def say_retention(given: Parameters) -> list[str]:
    """Return sentences about the retention that is filled in. Raises `InvalidArgument`."""
    seconds, size = retention_of(given)
    said = []
    if seconds is not None:
        said.append(
            f"Its messages are kept for {texts.duration(seconds)}."
            if seconds
            else "Its messages are kept as long as others of the brokers."
        )
    if size is not None:
        said.append(
            f"It has at most {texts.size(size)} on each broker: then its oldest messages go."
            if size
            else "It has no limit of its own for its size."
        )
    return said
