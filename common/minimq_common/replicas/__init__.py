"""Replicas of a broker: their record, and the election of a master."""
