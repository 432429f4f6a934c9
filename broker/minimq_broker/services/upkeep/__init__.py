"""Background work, and the calls of operators."""
