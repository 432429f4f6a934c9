"""Sending of Arrow columns: they become stored batches without any work per row.

Needs pyarrow, which is imported only here, in `minimq.receiving.arrow` and in `minimq.arrow`.
"""

try:
    import pyarrow  # noqa: F401 - only for the error message
except ImportError as error:
    raise ImportError("Arrow needs pyarrow: pip install 'minimq[arrow]'") from error
