"""Decisions of the broker, apart from disk, network and clock."""
