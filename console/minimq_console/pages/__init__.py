"""The pages of the console, one in each file."""
