"""The name server of minimq: the registry of routes."""

from minimq_common import silence_grpc

silence_grpc()
