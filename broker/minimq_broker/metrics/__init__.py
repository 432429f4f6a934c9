"""The metrics of a broker, read when somebody asks."""
