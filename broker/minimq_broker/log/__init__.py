"""The log and its files: segments, checkpoint, recovery, disk and clock. Positions and bytes, and no topics."""
