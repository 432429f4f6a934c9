"""Work queues: messages are taken one by one, and settled."""
