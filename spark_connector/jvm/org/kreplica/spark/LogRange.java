package org.kreplica.spark;

import org.apache.spark.sql.connector.read.InputPartition;

/** The work of one task: the offsets [start, stop) of the partition in a directory. Immutable. */
final class LogRange implements InputPartition {
    private static final long serialVersionUID = 1;
    static final LogRange NOTHING = new LogRange(new TopicPartition("", 0), null, 0, 0, Long.MIN_VALUE);

    final TopicPartition at;
    final String directory;
    final long start;
    final long stop;
    /** The earliest wanted time (ms since 1970); a reader may also return earlier records. */
    final long fromTime;

    LogRange(TopicPartition at, String directory, long start, long stop, long fromTime) {
        this.at = at;
        this.directory = directory;
        this.start = start;
        this.stop = stop;
        this.fromTime = fromTime;
    }

    LogRange between(long first, long end) {
        return new LogRange(at, directory, first, end, fromTime);
    }
}
