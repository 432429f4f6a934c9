"""Consumers: from a queue to the caller."""
