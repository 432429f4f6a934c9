"""Contiguous blocks: `minimq_common.allocation.averagely`, since brokers divide queues as well."""

from minimq_common.allocation.averagely import Averagely

__all__ = ["Averagely"]
