"""Kafka Streams on kreplica: a word count in Java (StreamsWordCount.java) over a cluster in this process.

    python examples/streams_on_kreplica.py "kafka_2.13-4.3.0/libs/*"

Needs a JDK and the jars of a Kafka distribution. Streams makes its own topics (repartition, changelog) and
writes in transactions; the program needs nothing but the addresses.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import kreplica

PROGRAM = Path(__file__).with_name("StreamsWordCount.java")
LINES = [b"a log is a sequence", b"a log is durable"]
EXPECTED = {b"a": b"3", b"log": b"2", b"is": b"2", b"sequence": b"1", b"durable": b"1"}


def main(class_path: str, directory: str) -> None:
    with kreplica.Cluster(brokers=3, directory=f"{directory}/cluster", serve=True) as cluster:
        for topic in ("lines", "counts"):
            cluster.create_topic(topic, partitions=2, replication_factor=3)
        cluster.append("lines", LINES).result(timeout=20)
        command = ["java", "-cp", class_path, str(PROGRAM), cluster.bootstrap_servers, f"{directory}/state"]
        counted: dict[bytes | None, bytes | None] = {}
        streams = subprocess.Popen(command)
        try:
            reader = cluster.consume("counts", group="reader", isolation="read_committed", timeout=60)
            for record in reader:
                counted[record.key] = record.value
                if counted == EXPECTED:
                    break
        finally:
            streams.terminate()
            streams.wait(60)
    for word, count in sorted(counted.items()):
        print(word.decode(), count.decode())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as made:
        main(sys.argv[1], made)
