"""Pulling of messages, and membership in consumer groups."""
