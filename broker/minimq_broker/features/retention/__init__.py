"""Retention: which segments and messages may be deleted."""

NAME = "retention"
