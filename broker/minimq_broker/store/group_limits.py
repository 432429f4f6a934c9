"""Limits on one transaction of the writer."""

from __future__ import annotations

from dataclasses import dataclass, field

from minimq_broker.core.staging import StagingLimits
from minimq_broker.store.delay_drafts import DelayLimits
from minimq_common.errors import MiniMQError


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Limits on what a group takes in.

    Attributes:
        refusal: why no new batch may be written now, None when it may; facts are.
        staging: how much may be staged.
        delays: how long batches may be delayed, and whether any may now.
    """

    refusal: MiniMQError | None = None
    staging: StagingLimits = field(default_factory=StagingLimits)
    delays: DelayLimits = field(default_factory=DelayLimits)
