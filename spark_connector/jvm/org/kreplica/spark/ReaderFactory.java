package org.kreplica.spark;

import java.io.IOException;
import java.io.Serializable;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.StructType;
import org.kreplica.spark.Planner.LogRange;

/** Creates the readers of tasks, on the executors. Immutable. */
final class ReaderFactory implements PartitionReaderFactory {
    private static final long serialVersionUID = 1;

    private final StructType schema;
    private final ReadSettings settings;
    private final int limit;
    private final boolean counts;

    /** `limit`: maximum rows of a task, or -1. `counts`: a task returns the number of rows instead. */
    ReaderFactory(StructType schema, ReadSettings settings, int limit, boolean counts) {
        this.schema = schema;
        this.settings = settings;
        this.limit = limit;
        this.counts = counts;
    }

    public boolean supportColumnarReads(InputPartition partition) {
        return true;
    }

    public PartitionReader createReader(InputPartition partition) {
        throw new UnsupportedOperationException("single rows: this source reads columns");
    }

    public PartitionReader createColumnarReader(InputPartition partition) {
        LogRange range = (LogRange) partition;
        try {
            if (counts) {
                return new CountReader(range, schema, settings);
            }
            return new RangeReader(range, schema, settings, limit);
        } catch (IOException error) {
            throw ReadException.of(error);
        }
    }

    /** What a task needs besides its range. Immutable. */
    static final class ReadSettings implements Serializable {
        private static final long serialVersionUID = 1;

        final boolean committed;
        final boolean skipDamaged;
        final boolean failOnDataLoss;

        ReadSettings(ReadOptions options) {
            committed = options.committed;
            skipDamaged = options.skipDamaged;
            failOnDataLoss = options.failOnDataLoss;
        }
    }
}
