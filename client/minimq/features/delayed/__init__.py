"""Delayed messages: due times and recall."""
