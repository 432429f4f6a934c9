"""Group commit: jobs, the writer, and the confirmation by replicas."""
