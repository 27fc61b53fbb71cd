package org.kreplica.spark;

import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomSumMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** What Spark's UI shows of a read, summed up over its tasks. */
public final class ReadMetrics {
    private ReadMetrics() {
    }

    static CustomMetric[] all() {
        return new CustomMetric[] {new BytesRead(), new BatchesRead(), new RecordsRead()};
    }

    /** Returns the values of a task. */
    static CustomTaskMetric[] of(RangeBatches walk, long records) {
        return new CustomTaskMetric[] {
            new Value(BytesRead.NAME, walk.bytes()), new Value(BatchesRead.NAME, walk.batches()),
            new Value(RecordsRead.NAME, records),
        };
    }

    /** The value of a metric in one task. Immutable. */
    private static final class Value implements CustomTaskMetric {
        private final String name;
        private final long value;

        Value(String name, long value) {
            this.name = name;
            this.value = value;
        }

        public String name() {
            return name;
        }

        public long value() {
            return value;
        }
    }

    /** The bytes of the batches whose checksums were checked; Spark makes it by its class. */
    public static final class BytesRead extends CustomSumMetric {
        static final String NAME = "logBytesRead";

        public String name() {
            return NAME;
        }

        public String description() {
            return "bytes of record batches read";
        }
    }

    /** The number of these batches; Spark makes it by its class. */
    public static final class BatchesRead extends CustomSumMetric {
        static final String NAME = "logBatchesRead";

        public String name() {
            return NAME;
        }

        public String description() {
            return "record batches read";
        }
    }

    /** The records handed to Spark; Spark makes it by its class. */
    public static final class RecordsRead extends CustomSumMetric {
        static final String NAME = "logRecordsRead";

        public String name() {
            return NAME;
        }

        public String description() {
            return "records read";
        }
    }
}
