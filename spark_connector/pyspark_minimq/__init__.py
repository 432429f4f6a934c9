"""The Spark data source of minimq: `spark.read.format("minimq")`.

Spark imports every top-level module named `pyspark_*` to find data sources, even for queries without minimq. So this
module imports as little as possible, and the rest is imported when it is used.
"""

from pyspark_minimq.confluent_avro import from_confluent_avro
from pyspark_minimq.session import session
from pyspark_minimq.source import MinimqDataSource as DefaultSource

__all__ = ["DefaultSource", "from_confluent_avro", "session"]
