"""Replication: the role of the broker at run time, and the stream from the master to its slaves."""
