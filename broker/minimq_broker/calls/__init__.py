"""The calls of the kernel: streams, append, pull, topics, status."""
