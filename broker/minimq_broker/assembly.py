"""The features of this build. Importing this module registers them, so that stores can be opened."""

from __future__ import annotations

from dataclasses import dataclass

from minimq_broker.features.compaction.feature import Compaction
from minimq_broker.features.delayed.feature import Delayed
from minimq_broker.features.feature import Feature
from minimq_broker.features.registry import register
from minimq_broker.features.retention.feature import RetentionFeature
from minimq_broker.features.retention.flags import RetentionFlags
from minimq_broker.features.search.feature import Search
from minimq_broker.features.staged.feature import StagedBatches
from minimq_broker.features.staged.flags import StagedFlags
from minimq_broker.features.work_queues.feature import WorkQueues
from minimq_broker.options import KernelOptions

#: In this order they set up a topic: retention rejects rules for topics that compaction has made lasting.
FEATURES: tuple[Feature, ...] = (Compaction(), Delayed(), RetentionFeature(), Search(), StagedBatches(), WorkQueues())
register(*FEATURES)


@dataclass(frozen=True)
class BrokerOptions(StagedFlags, RetentionFlags, KernelOptions):
    """The options of a broker.

    Raises:
        InvalidArgument: a value breaks a rule that the text names.
    """
