"""The name server of minimq: the registry of routes."""

from minimq_common import set_up_grpc

set_up_grpc()
