"""The features that the replicas of a master have announced."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from minimq_broker.state.facts import FeatureUsed
from minimq_common.errors import NotEnoughReplicas


class ReplicaFeatures:
    """Keeps a master from using a feature that one of its replicas could not read."""

    def __init__(self) -> None:
        #: Versions by name, by replica id. The event loop replaces it as a whole; the writer's thread reads it.
        self.announced: Mapping[int, Mapping[str, int]] = MappingProxyType({})

    def check(self, used: FeatureUsed) -> None:
        """Raise `NotEnoughReplicas` unless all replicas have a feature."""
        for replica_id, versions in self.announced.items():
            if versions.get(used.name, 0) < used.version:
                raise NotEnoughReplicas(
                    f"replica {replica_id} has not announced the feature {used.name!r}, version {used.version}, which "
                    "is used here for the first time: upgrade it, or start it"
                )
