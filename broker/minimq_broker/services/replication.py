"""The replicas of a broker, as its services see them."""

from __future__ import annotations

from typing import Protocol

from minimq_proto.v1 import broker_pb2


class Replication(Protocol):
    """The place of a broker among its replicas."""

    def tell(self) -> broker_pb2.ReplicationStatus:
        """Return the replication status of the broker and its replicas."""

    def slave_for_readers(self) -> int:
        """Return the broker id of a slave in sync, for readers that are far behind; 0 if there is none."""

    async def promote(self, *, unclean: bool) -> int:
        """Become the master, and return the term."""
