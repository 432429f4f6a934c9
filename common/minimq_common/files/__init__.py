"""Files that last."""
