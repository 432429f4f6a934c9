"""Limits on one transaction of the writer."""

from __future__ import annotations

from dataclasses import dataclass, field

from minimq_broker.core.staging import StagingLimits
from minimq_broker.store.delay_drafts import DelayLimits
from minimq_common.errors import MiniMQError


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Limits on what a group takes in."""

    #: Why no new batch may be written now, None when it may; facts are.
    refusal: MiniMQError | None = None
    #: How much may be staged.
    staging: StagingLimits = field(default_factory=StagingLimits)
    #: How long batches may be delayed, and whether any may now.
    delays: DelayLimits = field(default_factory=DelayLimits)
