"""Everything of the broker that touches the disk."""
