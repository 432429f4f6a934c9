"""Calls between clients and servers."""
