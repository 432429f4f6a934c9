"""TLS, authentication and access rules."""
