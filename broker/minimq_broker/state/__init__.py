"""The state that a log yields: durable facts, topics, ends of queues, producers."""
