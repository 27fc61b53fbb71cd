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
            boolean isOfCluster = settings.servers != null && range.directory != null;
            RangeBatches batches = isOfCluster ? (RangeBatches) new ClusterFetch(range, settings)
                : new RangeWalk(range, settings);
            if (counts) {
                return new CountReader(batches, schema, settings);
            }
            return new RangeReader(batches, schema, settings, limit);
        } catch (IOException error) {
            throw ReadException.of(error);
        }
    }

    /** What a task needs besides its range. Immutable. */
    static final class ReadSettings implements Serializable {
        private static final long serialVersionUID = 1;

        /** The addresses of a cluster; null for directories. */
        final String servers;
        final boolean committed;
        final boolean skipDamaged;
        final boolean failOnDataLoss;

        ReadSettings(ReadOptions options) {
            servers = options.servers;
            committed = options.committed;
            skipDamaged = options.skipDamaged;
            failOnDataLoss = options.failOnDataLoss;
        }
    }
}
