"""Messages that are stored all together, or once their transaction is decided."""
