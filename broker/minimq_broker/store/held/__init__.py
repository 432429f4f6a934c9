"""Batches that are stored and not yet visible, and dead letters."""
