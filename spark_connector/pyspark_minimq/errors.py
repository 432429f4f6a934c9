"""The error of the data source."""


class MinimqSourceError(Exception):
    """A query cannot be run. The text says why in one line: it is all that Spark hands on to the user."""
