"""Dead letters of consumer groups: reading them, and resending each of them once."""
