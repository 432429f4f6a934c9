"""Filters on properties, in a subset of SQL."""
