"""Changes of the users and rules of a secured cluster, in force at all running servers when they return."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import grpc
from msgspec.structs import replace

from minimq import Credentials, LocalCluster
from minimq.errors import NotAuthenticated
from minimq.local.access_file import AccessFile
from minimq_common.security.access_document import User
from minimq_common.wire import rpc
from minimq_proto.v1 import broker_pb2, broker_pb2_grpc, nameserver_pb2, nameserver_pb2_grpc
from support.secure_scraping import trust_of
from support.waiting import wait_until

TIMEOUT_S = 60.0
#: A user without rights, who gets a new key with each change: a server that accepts the key has read the file.
_PROBE = "probe"


class Users:
    """The file of a cluster's servers. The credentials that it returns have a client certificate, too."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.file = AccessFile(cluster.data_dir / "secrets")

    def add(self, name: str, rules: Any = (), roles: Any = (), **more: Any) -> str:
        text = self.file.add(name, rules, roles, **more)
        self.wait_in_force()
        return text

    def rotate(self, name: str, *, delete_old: bool = False) -> str:
        text = self.file.rotate(name, delete_old=delete_old)
        self.wait_in_force()
        return text

    def delete_old_keys(self, name: str) -> None:
        self.file.delete_old_keys(name)
        self.wait_in_force()

    def allow(self, name: str, *rules: str) -> None:
        """Add rules, which may also deny."""
        self.file.allow(name, rules)
        self.wait_in_force()

    def delete_rules(self, name: str, *rules: str) -> None:
        self.file.delete_rules(name, rules)
        self.wait_in_force()

    def disable(self, name: str) -> None:
        self._change(name, lambda user: replace(user, disabled=True))

    def enable(self, name: str) -> None:
        self._change(name, lambda user: replace(user, disabled=False))

    def remove(self, name: str) -> None:
        self.file.remove(name)
        self.wait_in_force()

    def _change(self, name: str, change: Callable[[User], User]) -> None:
        self.file.change_user(name, change)
        self.wait_in_force()

    def wait_in_force(self) -> None:
        has_probe = _PROBE in self.file.read().users
        text = self.file.rotate(_PROBE, delete_old=True) if has_probe else self.file.add(_PROBE)
        trust = trust_of(Credentials.from_text(text))
        servers: list[tuple[str, Any, Any]] = [
            *((each.address, _name_server, nameserver_pb2.GetClusterRequest()) for each in self._cluster.nameservers),
            *((each.address, _broker, broker_pb2.GetStatusRequest()) for each in self._cluster.brokers if each.running),
        ]
        for address, method, request in servers:
            with rpc.open_channel(address, trust) as channel:
                accepts = partial(_accepts, method(channel), request)
                wait_until(accepts, TIMEOUT_S, what=f"{address} has read the file")


def _name_server(channel: grpc.Channel) -> Any:
    return nameserver_pb2_grpc.NameServerStub(channel).GetCluster


def _broker(channel: grpc.Channel) -> Any:
    return broker_pb2_grpc.BrokerStub(channel).GetStatus


def _accepts(call: Any, request: Any) -> bool:
    try:
        call(request, timeout=TIMEOUT_S)
    except grpc.RpcError as error:
        return not isinstance(rpc.from_rpc_error(error, "server"), NotAuthenticated)
    return True
