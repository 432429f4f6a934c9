"""Replication: roles at run time, the stream from the master to its slaves, and what they agree on with a controller."""
