"""Decisions about batches that are stored and not yet visible."""
