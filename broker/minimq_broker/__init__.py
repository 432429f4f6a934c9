"""The broker: the store, the services that clients call, and their options."""

from minimq_common import set_up_grpc

set_up_grpc()
