"""Work in the background, and the calls of operators."""
