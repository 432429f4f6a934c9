"""Administration of topics, consumer groups and brokers. `admin` is the public interface."""
