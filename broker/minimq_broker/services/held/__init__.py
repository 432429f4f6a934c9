"""Calls about batches that are not yet visible, and about replies."""
