"""Keeping a data directory whole and small."""
