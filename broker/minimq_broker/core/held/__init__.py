"""Decisions about batches that are stored but not yet visible."""
