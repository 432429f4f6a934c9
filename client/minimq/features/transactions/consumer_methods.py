"""Methods of pull consumers for transactions."""

from __future__ import annotations

from minimq.consuming.pull_consumer import BasePullConsumer
from minimq.features.transactions.transaction_inputs import PullInput
from minimq_common.errors import InvalidArgument


class TransactionInputs(BasePullConsumer):
    """Lets transactions commit what they consume."""

    def transaction_input(self) -> PullInput:
        """Return the input of one transaction, for `Producer.transaction`.

        Raises:
            InvalidArgument: it commits automatically, or has no group.
        """
        reader = self._reader
        reader.check_open()
        if not reader.group or self._options.broadcast_dir is not None:
            raise InvalidArgument("a transaction consumes for a group: give the consumer a group, without broadcasting")
        if self._auto_commit:
            raise InvalidArgument("the transaction commits what is consumed: make the consumer with auto_commit=False")
        return PullInput(reader.client, reader.group, reader.client_id, reader.fetcher, reader.starts, self.poll)
