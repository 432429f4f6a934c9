"""Replication: roles at run time, and the stream from the master to its slaves."""
