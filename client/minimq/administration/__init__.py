"""Looking after topics, consumer groups and brokers. `admin` is the public face."""
