"""Decisions of the broker, without disk, network and clock."""
