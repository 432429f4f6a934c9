"""Transactions: messages and offsets that are stored together or not at all."""
