"""Requests, and replies to them."""
