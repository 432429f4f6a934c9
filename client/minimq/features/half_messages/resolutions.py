"""The ends of transactions with half messages."""

from __future__ import annotations

from enum import Enum

from minimq_proto.v1 import staged_pb2


class TransactionResolution(Enum):
    """The answer of a check: how a transaction ends."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    #: It is not known yet: the producer group is asked again later.
    UNKNOWN = "unknown"


#: Wire values.
OUTCOMES = {
    TransactionResolution.COMMIT: staged_pb2.HALF_OUTCOME_COMMITTED,
    TransactionResolution.ROLLBACK: staged_pb2.HALF_OUTCOME_ROLLED_BACK,
}
