"""Upkeep of a data directory: retention, compaction, verification, repair, copies."""
