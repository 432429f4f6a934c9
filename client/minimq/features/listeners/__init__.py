"""Push consumers: listeners, retries and redelivery."""
