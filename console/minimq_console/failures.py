"""Errors as pages: their status, and what stands there."""

from __future__ import annotations

import msgspec

from minimq_common import errors

#: The status of each class of errors; the first that fits counts.
_STATUS: dict[type[errors.MiniMQError], int] = {
    errors.InvalidArgument: 400,
    errors.NotAuthenticated: 401,
    errors.AccessDenied: 403,
    errors.TopicNotFound: 404,
    errors.GroupNotFound: 404,
    errors.QueueNotFound: 404,
    errors.OffsetOutOfRange: 404,
    errors.DeadlineExceeded: 504,
    errors.TransportError: 503,
    errors.SystemBusy: 503,
    errors.Closed: 503,
}
_HEADINGS = {
    400: "This address cannot be shown",
    401: "The cluster does not know you",
    403: "You may not see this",
    404: "There is no such thing",
    405: "This address is for reading only",
    500: "The console failed",
    503: "The cluster does not answer",
    504: "The cluster does not answer in time",
}
#: Of what the console itself refuses with 503, in place of the heading of the status.
_BUSY = "Too much is asked at once"


class Failure(msgspec.Struct, frozen=True):
    """A few sentences in place of a page."""

    status: int
    heading: str
    message: str
    #: Of the error of minimq; empty for others.
    code: str = ""

    def as_json(self) -> dict[str, object]:
        """Return it for the JSON twin of a page."""
        return {"error": self.code or self.heading, "message": self.message}


def failure_of(error: Exception) -> Failure:
    """Return what is said about an error."""
    if not isinstance(error, errors.MiniMQError):
        return failure(500, "The console has an error of its own; the log of its process says more.")
    status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 502)
    heading = _BUSY if isinstance(error, errors.SystemBusy) else _HEADINGS.get(status, "The cluster refused")
    return Failure(status, heading, error.message, error.code)


def failure(status: int, message: str) -> Failure:
    """Return what is said for a status of HTTP."""
    return Failure(status, _HEADINGS.get(status, "This cannot be shown"), message)
