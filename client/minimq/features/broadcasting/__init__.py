"""Broadcasting: each consumer reads all queues and keeps its own offsets."""
