"""The Spark data source of minimq: `spark.read.format("minimq")`.

Spark imports every top-level module called `pyspark_*` when it looks for data sources, also for queries that have
nothing to do with minimq. So this imports next to nothing; everything else is imported when it is used.
"""

from pyspark_minimq.confluent_avro import from_confluent_avro
from pyspark_minimq.session import session
from pyspark_minimq.source import MinimqDataSource as DefaultSource

__all__ = ["DefaultSource", "from_confluent_avro", "session"]
