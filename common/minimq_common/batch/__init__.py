"""The batch format: many records as columns in one `bytes`."""
