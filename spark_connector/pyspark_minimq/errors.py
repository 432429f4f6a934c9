"""The error of the source and the sink."""


class MinimqSparkError(Exception):
    """A query cannot be run. The text says why in one line: it is all that Spark hands on to the user."""
