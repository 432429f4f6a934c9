"""The options of retention."""

from __future__ import annotations

from dataclasses import dataclass

from minimq_broker.options import KernelOptions
from minimq_common.serving.options import option


@dataclass(frozen=True)
class RetentionFlags(KernelOptions):
    retention_s: float = option(
        72 * 3600.0,
        "Age at which messages expire; 0 means never. Set it to what consumers need to reread.",
        minimum=0,
        section="Storage",
    )
    retention_bytes: int = option(
        0, "Size of the log at which its oldest files are deleted; 0 means any. Set it on a shared disk.", minimum=0
    )
    dead_letter_retention_s: float = option(
        0.0, "Age at which dead letters expire; 0 means never. Set it if old ones are worthless.", minimum=0
    )
    dead_letter_bytes: int = option(
        0,
        "Size of a group's dead letters at which the oldest are deleted; 0 means any. Set it if groups fail often.",
        minimum=0,
    )

    @property
    def max_log_bytes(self) -> int:
        """Bytes that the log may take; 0 for any number."""
        return self.retention_bytes
