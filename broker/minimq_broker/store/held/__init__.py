"""Batches that are stored but not yet visible: delayed batches and half messages."""
