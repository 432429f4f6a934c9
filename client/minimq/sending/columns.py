"""What a connector needs that has columns instead of messages: it makes batches of them itself.

See `RecordsSender` for how these are sent.
"""

from __future__ import annotations

from minimq_common.batch import SEPARATOR, Section
from minimq_common.batch_columns import BatchColumns, check_metadata, tag_section
from minimq_common.compression import Compression

__all__ = ["SEPARATOR", "BatchColumns", "Compression", "Section", "check_metadata", "tag_section"]
