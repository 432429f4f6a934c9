"""Sending of Arrow columns: rows become batches as they are stored, and nothing is done row by row.

Needs pyarrow, which is imported nowhere else but here, in `minimq.receiving.arrow` and in `minimq.arrow`.
"""

try:
    import pyarrow  # noqa: F401 - only to say what to do when it is not there
except ImportError as error:
    raise ImportError("Arrow needs pyarrow: pip install 'minimq[arrow]'") from error
