"""The options of transactions and half messages."""

from __future__ import annotations

from dataclasses import dataclass

from minimq_broker.options import KernelOptions
from minimq_common.serving.options import option


@dataclass(frozen=True)
class StagedFlags(KernelOptions):
    transaction_expiry_s: float = option(
        24 * 3600.0,
        "Age at which an undecided transaction expires. Raise it for jobs that commit later.",
        minimum=0.1,
        section="Messages and groups",
    )
    check_back_after_s: float = option(
        6.0, "Age at which a producer is asked how its half messages end. Raise it for slow transactions.", minimum=0.05
    )
    max_check_backs: int = option(
        15,
        "Number of such questions before a decision by hand. Raise it if producers stay offline.",
        metavar="N",
        minimum=1,
        maximum=10_000,
    )
