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
    private final boolean isRealTime;

    /** `limit`: maximum rows of a task, or -1. `counts`: a task returns the number of rows instead. */
    ReaderFactory(StructType schema, ReadSettings settings, int limit, boolean counts) {
        this(schema, settings, limit, counts, false);
    }

    private ReaderFactory(StructType schema, ReadSettings settings, int limit, boolean counts, boolean isRealTime) {
        this.schema = schema;
        this.settings = settings;
        this.limit = limit;
        this.counts = counts;
        this.isRealTime = isRealTime;
    }

    /** Returns the factory of a stream in real-time mode, whose readers return rows as they are written. */
    static ReaderFactory realTime(StructType schema, ReadSettings settings) {
        return new ReaderFactory(schema, settings, -1, false, true);
    }

    public boolean supportColumnarReads(InputPartition partition) {
        return !isRealTime;
    }

    /** Creates the reader of a stream in real-time mode; others read columns. */
    public PartitionReader createReader(InputPartition partition) {
        LogRange range = (LogRange) partition;
        FollowedBatches batches = isOfCluster(range) ? (FollowedBatches) new ClusterFetch(range, settings)
            : new LogFollower(range, settings);
        return new RealTimeReader(batches, schema, settings);
    }

    private boolean isOfCluster(LogRange range) {
        return settings.servers != null && range.directory != null;
    }

    public PartitionReader createColumnarReader(InputPartition partition) {
        LogRange range = (LogRange) partition;
        try {
            RangeBatches batches = isOfCluster(range) ? (RangeBatches) new ClusterFetch(range, settings)
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
