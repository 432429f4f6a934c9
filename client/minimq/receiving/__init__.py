"""From a queue to the caller. `pull_consumer` and `push_consumer` are the public faces, `consumer_core` the core."""
