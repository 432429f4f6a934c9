"""The common parts of servers: options, logs, metrics, start and stop."""
