"""Search for messages by key, id and time."""
