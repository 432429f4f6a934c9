"""A console in the browser that shows a cluster, and administers it."""
