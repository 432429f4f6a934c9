"""Filters of a subscription: by tag (`a || b`), and by property (`region = 'eu' AND amount > 10`)."""
