"""Stored batches as Arrow record batches; see `minimq.sending.arrow` for the other way, and for pyarrow."""

import minimq.sending.arrow  # noqa: F401 - looks whether pyarrow is there
