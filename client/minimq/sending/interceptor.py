"""Interceptors: they see or replace every message of a producer, and get its outcome."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from minimq.arguments import check_plain_function
from minimq.sending.pending_batch import Outcome
from minimq.sending.receipt import SendReceipt
from minimq_common.errors import InvalidArgument, MinimqError, SendFailed
from minimq_common.model import Message

log = logging.getLogger(__name__)


class SendInterceptor:
    """The base class of interceptors; its methods do nothing.

    They run on threads that send and on the callback thread of the producer: they must be thread-safe and quick.
    """

    def before_send(self, message: Message) -> Message:
        """Return the message to send, this one or another. If this raises, nothing is sent and the send raises it."""
        return message

    def after_send(self, message: Message, receipt: SendReceipt | None, error: MinimqError | None) -> None:
        """Process the outcome: a receipt, or the error. An exception is logged.

        Both are None for a half message of a `TransactionalProducer` on disk: it has no offset before the commit.
        """

    def for_many(self) -> SendInterceptor:
        """Return the interceptor for one `send_many`: by default this one. Override it to tell such calls apart."""
        return self

    def after_many(self, error: BaseException | None) -> None:
        """Process the end of a `send_many`, after the outcomes of its messages; `error` is what it raises, or None."""


#: Those added by `intercept_all`.
_of_all: list[SendInterceptor] = []


def intercept_all(interceptor: SendInterceptor) -> Callable[[], None]:
    """Add an interceptor to all producers created from now on, behind their own; call the result to undo that."""
    _of_all.extend(Interceptors((interceptor,)))
    return partial(_of_all.remove, interceptor)


class Interceptors(tuple[SendInterceptor, ...]):
    """The interceptors of one producer, in order: each gets the message that the previous one returned."""

    __slots__ = ()

    @classmethod
    def of(cls, given: Sequence[SendInterceptor]) -> Interceptors:
        """Return `given`, and those of `intercept_all` whose class is not among them."""
        own = {type(each) for each in given}
        return cls((*given, *(each for each in _of_all if type(each) not in own)))

    def __init__(self, _: Sequence[SendInterceptor]) -> None:
        for interceptor in self:
            if not isinstance(interceptor, SendInterceptor):
                raise InvalidArgument(f"interceptor {interceptor!r} is not an instance of SendInterceptor")
            for name in ("before_send", "after_send"):
                check_plain_function(f"{type(interceptor).__name__}.{name}", getattr(interceptor, name))

    def before_send(self, message: Message) -> Message:
        for interceptor in self:
            made = interceptor.before_send(message)
            if not isinstance(made, Message):
                raise InvalidArgument(f"{type(interceptor).__name__}.before_send returned {made!r}: return the message")
            message = made
        return message

    def after_send(self, message: Message, receipt: SendReceipt | None, error: MinimqError | None) -> None:
        """Notify all interceptors, in reverse order."""
        for interceptor in reversed(self):
            try:
                interceptor.after_send(message, receipt, error)
            except Exception:
                log.exception("producer: an interceptor failed after a send topic=%s", message.topic)

    @contextmanager
    def many(self) -> Iterator[Interceptors]:
        """Return the interceptors of one `send_many`; they are notified of its end after the block."""
        chosen = Interceptors([each.for_many() for each in self])
        error: BaseException | None = None
        try:
            yield chosen
        except BaseException as raised:
            error = raised
            raise
        finally:
            for interceptor in reversed(chosen):
                try:
                    interceptor.after_many(error)
                except Exception:
                    log.exception("producer: an interceptor failed after send_many")

    def watching(self, message: Message, outcome: Outcome[SendReceipt] | None) -> Outcome[SendReceipt]:
        """Return an outcome that notifies these interceptors, as user code: not on the event loop; then the sender."""

        def tell(result: SendReceipt | MinimqError) -> None:
            try:
                if isinstance(result, MinimqError):
                    self.after_send(message, None, result)
                else:
                    self.after_send(message, result, None)
            finally:  # even after SystemExit
                call = outcome(result) if outcome is not None else None
                if call is not None:
                    call()

        return lambda result: partial(tell, result)

    def not_sent(self, messages: Iterable[Message], error: BaseException) -> None:
        """Notify all interceptors that messages, which `before_send` has seen, are not stored, or may not be."""
        for message in messages if self else ():
            self.after_send(message, None, reason_of(error))


def reason_of(error: BaseException) -> MinimqError:
    """Return the error of messages whose call has raised `error`."""
    if isinstance(error, MinimqError):
        return error
    return SendFailed(f"the call ended before the message had an outcome, it may be stored: {error!r}", may_be_stored=1)
