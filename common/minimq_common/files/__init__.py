"""LMDB files and checksums of their rows."""
