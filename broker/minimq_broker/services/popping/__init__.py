"""Calls about work queues."""
