"""TLS of all links: the certificates that servers and clients show, and whom they trust."""
