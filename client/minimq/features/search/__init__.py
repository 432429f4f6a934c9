"""Search and trace of messages."""
