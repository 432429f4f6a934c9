"""The metrics of a broker, collected at each scrape."""
