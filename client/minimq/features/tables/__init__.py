"""Topics as Arrow tables, in both directions. Modules that need pyarrow are imported by the calls that use them."""


def check_pyarrow() -> None:
    """Raise `ImportError` unless pyarrow is installed."""
    try:
        import pyarrow  # noqa: F401 - only for the error message
    except ImportError as error:
        raise ImportError("Arrow needs pyarrow: pip install 'minimq[arrow]'") from error
