"""The bounds of the calls and connections of a broker, as gRPC and the `Dispatcher` keep to them."""

from __future__ import annotations

import math

from minimq_broker.options import BrokerOptions
from minimq_common.wire import rpc
from minimq_common.wire.dispatcher import FIRST_REQUEST_S, MAX_DECISION_BYTES, CallLimits
from minimq_common.wire.protocol_bounds import MAX_DOCUMENT_BYTES

#: Bytes of the largest request, of calls for which it is another one than for most.
_LARGEST_REQUESTS = {
    "Append": math.inf,
    "AppendAtomic": math.inf,
    "Reply": math.inf,
    "CommitTransaction": MAX_DECISION_BYTES,
    "DescribeTransaction": MAX_DECISION_BYTES,
    "SetAccess": 2 * MAX_DOCUMENT_BYTES,
}

#: What a request may have besides the largest batch, in bytes.
_AROUND_BATCH = 1 << 20


def call_limits(options: BrokerOptions) -> CallLimits:
    """Return the bounds of what clients may do."""
    return CallLimits(
        max_streams=options.max_streams,
        option="--max-streams",
        user_streams=options.max_streams,
        first_request_s=FIRST_REQUEST_S,
        largest=_LARGEST_REQUESTS,
    )


def channel_options(options: BrokerOptions) -> tuple[tuple[str, int], ...]:
    """Return the options of the gRPC server."""
    return rpc.server_options(
        max_receive_message_length=options.max_batch_bytes + _AROUND_BATCH,
        max_allowed_incoming_connections=options.max_connections,
    )
