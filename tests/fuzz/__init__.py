"""Hostile input by the million: what any server, decoder or file makes of what no client of ours sends."""
