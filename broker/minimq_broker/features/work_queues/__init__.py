"""Work queues: messages that are taken and settled one by one."""
