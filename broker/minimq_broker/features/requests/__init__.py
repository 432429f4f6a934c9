"""Requests and replies through the broker's memory."""
