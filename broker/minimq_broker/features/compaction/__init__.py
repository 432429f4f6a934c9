"""Compacted topics: keep the newest message of each key."""

NAME = "compaction"
