"""The metrics of a broker, read on demand."""
