package org.kreplica.spark;

import org.apache.spark.sql.connector.read.streaming.PartitionOffset;

/** How far a task has read a partition. Immutable. */
final class LogPosition implements PartitionOffset {
    private static final long serialVersionUID = 1;

    final TopicPartition at;
    final long offset;

    LogPosition(TopicPartition at, long offset) {
        this.at = at;
        this.offset = offset;
    }
}
