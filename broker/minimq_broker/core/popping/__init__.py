"""Decisions about work queues."""
