"""Optional OpenTelemetry spans of a broker."""
