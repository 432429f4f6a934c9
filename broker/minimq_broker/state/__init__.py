"""What the log means: durable facts, topics, ends of queues, producers."""
