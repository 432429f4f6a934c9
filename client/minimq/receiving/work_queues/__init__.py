"""Consumers of work queues, whose messages are popped and settled one by one."""
