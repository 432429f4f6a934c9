"""Consumer groups: sessions, members, leases and offsets."""
