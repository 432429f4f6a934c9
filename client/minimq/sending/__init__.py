"""From a message to its receipt. `producer` is the public face, `dispatcher` the core."""
