"""Sending of messages. `producer` is the public interface, `record_accumulator` decides, `sender` acts."""
