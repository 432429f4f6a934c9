"""Transactions: messages that become visible all together, once their transaction is decided."""
