"""Copies of a data directory, and checks and repairs of its files."""
