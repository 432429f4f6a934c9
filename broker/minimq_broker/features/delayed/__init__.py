"""Delayed messages and their recall."""
