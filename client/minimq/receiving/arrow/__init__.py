"""Converts stored batches to Arrow record batches; `minimq.sending.arrow` converts in the other direction."""

import minimq.sending.arrow  # noqa: F401 - checks that pyarrow is installed
