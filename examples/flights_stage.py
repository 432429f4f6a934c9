"""Common setup of the Spark examples: a local cluster, flights in a topic, and Spark."""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator
from contextlib import contextmanager

import pandas as pd
from flights_data import as_messages, departures
from flights_spark import quiet_spark
from pyspark.sql import SparkSession

from minimq import Admin, LocalCluster, Producer

BROKERS = 2
QUEUES_PER_BROKER = 2


def arguments(about: str | None) -> ArgumentParser:
    return ArgumentParser(description=about, formatter_class=RawDescriptionHelpFormatter)


def january() -> pd.DataFrame:
    """Return the 27,004 departures of January."""
    table = departures()
    return table[table["month"] == 1]


def send_flights(nameserver: str, topic: str, table: pd.DataFrame) -> None:
    """Send departures, each as JSON; returns when all of them are on disk."""
    with Producer(nameserver) as producer:
        producer.send_many(as_messages(topic, table))


@contextmanager
def cluster_and_spark(*topics: str) -> Iterator[tuple[str, SparkSession]]:
    """Run a cluster with empty topics, and Spark, during the block.

    Yields:
        The address of the cluster's name server, and the Spark session.
    """
    with LocalCluster(brokers=BROKERS) as cluster:
        with Admin(cluster.nameserver) as admin:
            for topic in topics:
                admin.create_topic(topic, queues=QUEUES_PER_BROKER)
        with quiet_spark() as spark:
            yield cluster.nameserver, spark
