"""The Spark data source of minimq."""
