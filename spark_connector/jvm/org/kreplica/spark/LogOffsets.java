package org.kreplica.spark;

import java.util.SortedMap;
import org.apache.spark.sql.connector.read.streaming.Offset;

/** The progress of a stream in each partition, in the JSON of Spark's Kafka source. Immutable. */
final class LogOffsets extends Offset {
    /** A Long for each TopicPartition. */
    final SortedMap offsets;

    LogOffsets(SortedMap offsets) {
        this.offsets = offsets;
    }

    static LogOffsets of(String json) {
        return new LogOffsets(Json.numbers("checkpoint", json, "offset", 0));
    }

    public String json() {
        return Json.text(offsets);
    }
}
