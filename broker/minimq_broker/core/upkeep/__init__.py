"""Decisions about retention, compaction and searches."""
