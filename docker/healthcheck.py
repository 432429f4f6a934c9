"""The health check of the image: asks the server of this container a real question, as any client would.

Which server that is follows from the variable that says where it listens. A broker is healthy without its name servers:
it goes on to serve the clients that know it, so that the failure of one must not look like the failure of all.
"""

from __future__ import annotations

import os
import sys

import grpc

from minimq_common.rpc import from_rpc_error, open_channel
from minimq_proto.v1 import broker_pb2, broker_pb2_grpc, nameserver_pb2, nameserver_pb2_grpc

_TIMEOUT_S = 3.0


def main() -> None:
    """Exit with status 0 when the server answers, otherwise with 1 and the reason, which `docker inspect` shows."""
    broker = os.environ.get("MINIMQ_BROKER_LISTEN", "")
    listen = broker or os.environ.get("MINIMQ_NAMESERVER_LISTEN", "")
    if not listen:
        sys.exit("neither MINIMQ_BROKER_LISTEN nor MINIMQ_NAMESERVER_LISTEN is set: what is there to check?")
    with open_channel("127.0.0.1:" + listen.rpartition(":")[2]) as channel:
        try:
            if broker:
                status = broker_pb2_grpc.BrokerStub(channel).GetStatus(
                    broker_pb2.GetStatusRequest(), timeout=_TIMEOUT_S
                )
                answer = f"{status.broker_name} serves, log end {status.log_end}"
            else:
                cluster = nameserver_pb2_grpc.NameServerStub(channel).GetCluster(
                    nameserver_pb2.GetClusterRequest(), timeout=_TIMEOUT_S
                )
                answer = f"brokers: {' '.join(broker.broker_name for broker in cluster.brokers) or 'none'}"
        except grpc.RpcError as error:
            sys.exit(f"{listen} does not answer: {from_rpc_error(error, 'the server').message}")
    sys.stdout.write(f"{answer}\n")


if __name__ == "__main__":
    main()
