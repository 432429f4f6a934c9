"""One by one: `minimq_common.allocation.averagely_by_circle`, since brokers divide queues as well."""

from minimq_common.allocation.averagely_by_circle import AveragelyByCircle

__all__ = ["AveragelyByCircle"]
