"""Staged batches: transactions across brokers, and half messages."""
