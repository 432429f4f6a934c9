"""The client of minimq, a mini message queue with the architecture of RocketMQ."""

__version__ = "0.1.0"
