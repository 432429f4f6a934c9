"""A client in its process: logging, forks, and clients that were dropped without `close`."""
