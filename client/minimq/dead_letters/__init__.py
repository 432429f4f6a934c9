"""Dead letters of consumer groups: looking at them, and sending each of them again once."""
