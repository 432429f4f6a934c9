"""Consumers that call a listener."""
