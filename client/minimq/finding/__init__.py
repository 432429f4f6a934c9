"""Messages by their keys and ids, and the fate of one."""
