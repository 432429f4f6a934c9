"""The spans of a broker by OpenTelemetry, if somebody wants them."""
