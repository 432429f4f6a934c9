"""Looking after topics and brokers. `admin` is the public face."""
