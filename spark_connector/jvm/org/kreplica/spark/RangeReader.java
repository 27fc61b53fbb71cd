package org.kreplica.spark;

import java.io.IOException;
import java.nio.ByteBuffer;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.kreplica.spark.BatchRecords.BadRecords;
import org.kreplica.spark.BatchRecords.RecordCursor;
import org.kreplica.spark.ReaderFactory.ReadSettings;

/** Returns a task's records as columns that point into the bytes read from segments. One thread. */
final class RangeReader implements PartitionReader {
    // Once this much is decompressed, a batch of rows ends at the end of a batch of records.
    private static final int DECOMPRESSED_BYTES = 4 << 20;

    private final RangeBatches walk;
    private final BatchRecords records;
    private final RowBatch rows;
    private long rowsLeft;
    private long rowsRead;
    private boolean isOpen;
    private boolean isDone;
    private ColumnarBatch found;

    /** `limit`: maximum number of rows, or -1. */
    RangeReader(RangeBatches walk, StructType schema, ReadSettings settings, int limit) {
        this.walk = walk;
        records = new BatchRecords(walk, settings.skipDamaged);
        rows = new RowBatch(schema, walk);
        rowsLeft = limit < 0 ? Long.MAX_VALUE : limit;
    }

    public boolean next() throws IOException {
        try {
            return fill();
        } catch (IOException error) {
            throw ReadException.of(error);
        }
    }

    private boolean fill() throws IOException {
        rows.clear();
        ByteBuffer bytes = null;
        Object place = null;
        while (rows.rows() < Math.min(rowsLeft, RowBatch.CAPACITY)) {
            // A batch may have no rows in the range: compaction removed those at its end, where the range begins.
            boolean isEmpty = rows.rows() == 0;
            if (!isOpen && isEmpty) {
                records.reuse();
            }
            // The rows point into the bytes that were read.
            walk.keepData(!isEmpty);
            if (!isOpen && !openNext()) {
                break;
            }
            if (!isEmpty && place != records.place()) {
                break;
            }
            place = records.place();
            bytes = records.cursor.data;
            takeRows();
            if (!isOpen && rows.rows() > 0 && records.decompressedBytes() >= DECOMPRESSED_BYTES) {
                break;
            }
        }
        rowsLeft -= rows.rows();
        rowsRead += rows.rows();
        found = rows.rows() > 0 ? rows.finish(bytes) : null;
        return found != null;
    }

    private boolean openNext() throws IOException {
        isOpen = !isDone && records.nextBatch();
        isDone = !isOpen;
        return isOpen;
    }

    private void takeRows() throws IOException {
        RecordCursor cursor = records.cursor;
        long start = walk.start();
        long stop = walk.stop();
        long from = walk.range().fromTime;
        long to = walk.range().toTime;
        int room = (int) Math.min(rowsLeft, RowBatch.CAPACITY);
        try {
            while (cursor.left > 0 && rows.rows() < room) {
                cursor.next();
                if (cursor.offset >= stop) {
                    cursor.left = 0;
                } else if (cursor.offset >= start && cursor.timestamp >= from && cursor.timestamp <= to) {
                    rows.add(cursor);
                }
            }
        } catch (BadRecords error) {
            walk.skipRecords(error.getMessage());
            cursor.left = 0;
        }
        isOpen = cursor.left > 0;
    }

    public CustomTaskMetric[] currentMetricsValues() {
        return ReadMetrics.of(walk, rowsRead);
    }

    public Object get() {
        return found;
    }

    public void close() throws IOException {
        walk.close();
    }
}
