"""The broker: the store, the services that clients call, and their options."""

from minimq_common import silence_grpc

silence_grpc()
