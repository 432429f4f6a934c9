"""Topics as Arrow tables, in both directions. Needs pyarrow, which only this package and `minimq.arrow` import."""

try:
    import pyarrow  # noqa: F401 - only for the error message
except ImportError as error:
    raise ImportError("Arrow needs pyarrow: pip install 'minimq[arrow]'") from error
