"""Text of users on a terminal."""

from __future__ import annotations


def printable(line: str) -> str:
    """Return a line in which control characters, which a terminal would obey, are escapes."""
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in line)
