"""The name server of minimq: the registry of routes."""
