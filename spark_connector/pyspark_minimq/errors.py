"""The error of the source and the sink."""


class MinimqSparkError(Exception):
    """A query cannot be run. The text says why, in one line, since Spark passes nothing else to the user."""
