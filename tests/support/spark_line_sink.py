"""A sink in Spark's JVM that appends each row to a file at once, as a line.

Python's own functions get rows in bunches. Rows have one column, a string without line breaks; a line has the
time of its arrival (us since 1970), a tab, and the row. Only for sessions whose driver runs the tasks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter

_CLASS = "org.kreplica.test.LineSink"
# For Janino, as the connector's sources.
_SOURCE = """
package org.kreplica.test;

public final class LineSink extends org.apache.spark.sql.ForeachWriter {
    private final String path;
    private transient java.io.FileOutputStream file;

    public LineSink(String path) {
        this.path = path;
    }

    public boolean open(long partition, long epoch) {
        try {
            file = new java.io.FileOutputStream(path, true);
        } catch (java.io.IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
        return true;
    }

    public void process(Object row) {
        java.time.Instant now = java.time.Instant.now();
        long us = now.getEpochSecond() * 1000000 + now.getNano() / 1000;
        String line = us + "\\t" + ((org.apache.spark.sql.Row) row).getString(0) + "\\n";
        try {
            file.write(line.getBytes(java.nio.charset.StandardCharsets.UTF_8));
        } catch (java.io.IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
    }

    public void close(Throwable error) {
        try {
            file.close();
        } catch (java.io.IOException failed) {
            throw new java.io.UncheckedIOException(failed);
        }
    }
}
"""


def to_lines(spark: SparkSession, writer: DataStreamWriter, path: Path, classes: Path) -> DataStreamWriter:
    """Return the writer with `path` as its sink; the class of the sink is compiled into `classes`."""
    made: Any = writer
    sink = _sink_class(spark, classes)
    arguments: Any = spark.sparkContext._gateway.new_array(_jvm(spark).java.lang.Object, 1)
    arguments[0] = str(path)
    made._jwrite = made._jwrite.foreach(sink.getConstructors()[0].newInstance(arguments))
    return writer


def read_lines(path: Path) -> list[tuple[int, str]]:
    """Return the times of arrival and the rows of all whole lines."""
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1].splitlines()
    return [(int(us), row) for us, _, row in (line.partition("\t") for line in whole)]


def _jvm(spark: SparkSession) -> Any:
    return spark._jvm


def _sink_class(spark: SparkSession, classes: Path) -> Any:
    jvm = _jvm(spark)
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    file = _CLASS.replace(".", "/") + ".class"
    if loader.getResource(file) is None:
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.cook(_SOURCE)
        found = classes / file
        found.parent.mkdir(parents=True, exist_ok=True)
        found.write_bytes(bytes(compiler.getBytecodes()[_CLASS]))
        loader.addURL(jvm.java.io.File(str(classes)).toURI().toURL())
    return loader.loadClass(_CLASS)
