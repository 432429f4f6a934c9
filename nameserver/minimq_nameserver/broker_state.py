"""The description of itself that a broker registers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minimq_common.errors import InvalidArgument
from minimq_common.model import Permission, QueueData
from minimq_common.names import check_address, check_broker, check_cluster


@dataclass(frozen=True, slots=True)
class BrokerState:
    """Everything one broker tells about itself."""

    cluster: str
    broker_name: str
    #: 0 for the master, larger for a slave.
    broker_id: int
    address: str
    data_version: int
    #: What may be done with all of its topics.
    permission: Permission
    #: Queue data by topic; checked by who reads them, since there may be many. Never changed afterwards.
    topics: Mapping[str, QueueData]

    def __post_init__(self) -> None:
        check_cluster(self.cluster)
        check_broker(self.broker_name)
        check_address(self.address)
        if self.broker_id < 0:
            raise InvalidArgument(f"broker id {self.broker_id} of {self.broker_name}: it must not be negative")

    def __str__(self) -> str:
        return f"{self.broker_name} (id {self.broker_id}) at {self.address}"
