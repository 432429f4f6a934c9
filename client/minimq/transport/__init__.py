"""Connections to brokers, and streams in both directions over them."""
