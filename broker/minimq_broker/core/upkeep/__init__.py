"""Decisions about what is deleted, rewritten and found."""
