"""Work queues in the log."""
