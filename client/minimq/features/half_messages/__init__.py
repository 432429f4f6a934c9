"""Half messages: messages that become visible when a local transaction is decided."""
