"""From a message to its receipt. `producer` is the public face, `record_accumulator` decides, `sender` does."""
