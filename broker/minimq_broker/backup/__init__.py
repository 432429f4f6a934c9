"""Copies of a data directory, and checks of its files."""
