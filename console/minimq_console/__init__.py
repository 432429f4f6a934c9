"""A console in the browser: what a cluster has and does, for people who look after it."""
