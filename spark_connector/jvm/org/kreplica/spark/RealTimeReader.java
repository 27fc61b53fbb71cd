package org.kreplica.spark;

import java.io.IOException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeRead;
import org.apache.spark.sql.types.StructType;
import org.kreplica.spark.BatchRecords.BadRecords;
import org.kreplica.spark.BatchRecords.RecordCursor;
import org.kreplica.spark.ReaderFactory.ReadSettings;

/**
 * Returns the records of a partition one by one, as soon as they can be read, until Spark ends the batch.
 *
 * Spark reads on from `getOffset` in the next batch. One thread.
 */
final class RealTimeReader implements SupportsRealTimeRead {
    private final FollowedBatches walk;
    private final BatchRecords records;
    private final RowBatch rows;
    private long rowsRead;
    private InternalRow row;

    RealTimeReader(FollowedBatches walk, StructType schema, ReadSettings settings) {
        this.walk = walk;
        records = new BatchRecords(walk, settings.skipDamaged);
        rows = new RowBatch(schema, walk);
    }

    /** Waits for a record. `start`: the time now, which is not needed. */
    public SupportsRealTimeRead.RecordStatus nextWithTimeout(Long start, Long timeoutMs) throws IOException {
        waitUntil(Deadline.in(timeoutMs.longValue()));
        return SupportsRealTimeRead.RecordStatus.newStatusWithoutArrivalTime(next());
    }

    /** Sets until when `next` waits. */
    void waitUntil(Deadline deadline) {
        walk.waitUntil(deadline);
    }

    public boolean next() throws IOException {
        try {
            boolean found = advance();
            rowsRead += found ? 1 : 0;
            return found;
        } catch (IOException error) {
            throw ReadException.of(error);
        }
    }

    private boolean advance() throws IOException {
        while (true) {
            while (records.cursor.left > 0) {
                if (takeRow()) {
                    return true;
                }
            }
            records.reuse();
            if (!records.nextBatch()) {
                return false;
            }
        }
    }

    private boolean takeRow() throws IOException {
        RecordCursor cursor = records.cursor;
        try {
            cursor.next();
            if (cursor.offset >= walk.stop()) {
                cursor.left = 0;
                return false;
            }
            if (cursor.offset < walk.start()) {
                return false;
            }
            rows.clear();
            rows.add(cursor);
        } catch (BadRecords error) {
            walk.skipRecords(error.getMessage());
            cursor.left = 0;
            return false;
        }
        row = rows.finish(cursor.data).getRow(0);
        return true;
    }

    public Object get() {
        return row;
    }

    /** Returns the offset of the record that comes next. */
    public PartitionOffset getOffset() {
        boolean isWithin = records.cursor.left > 0;
        return new LogPosition(walk.range().at, isWithin ? records.cursor.offset + 1 : walk.nextOffset());
    }

    public CustomTaskMetric[] currentMetricsValues() {
        return ReadMetrics.of(walk, rowsRead);
    }

    public void close() throws IOException {
        walk.close();
    }

    /** A reader that decodes the rows of a RealTimeReader. One thread. */
    static final class Decoded implements SupportsRealTimeRead {
        private final RealTimeReader inner;
        private final PartitionReader decoding;

        Decoded(RealTimeReader inner, PartitionReader decoding) {
            this.inner = inner;
            this.decoding = decoding;
        }

        public SupportsRealTimeRead.RecordStatus nextWithTimeout(Long start, Long timeoutMs) throws IOException {
            inner.waitUntil(Deadline.in(timeoutMs.longValue()));
            return SupportsRealTimeRead.RecordStatus.newStatusWithoutArrivalTime(next());
        }

        public boolean next() throws IOException {
            return decoding.next();
        }

        public Object get() {
            return decoding.get();
        }

        public PartitionOffset getOffset() {
            return inner.getOffset();
        }

        public CustomTaskMetric[] currentMetricsValues() {
            return inner.currentMetricsValues();
        }

        public void close() throws IOException {
            decoding.close();
        }
    }
}
