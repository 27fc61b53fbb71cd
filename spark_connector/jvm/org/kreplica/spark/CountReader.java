package org.kreplica.spark;

import java.io.IOException;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.execution.vectorized.ConstantColumnVector;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.types.UTF8String;
import org.kreplica.spark.BatchRecords.BadRecords;
import org.kreplica.spark.BatchRecords.RecordCursor;
import org.kreplica.spark.Planner.LogRange;
import org.kreplica.spark.ReaderFactory.ReadSettings;

/**
 * Returns the number of records in a task's range as one row, counted from batch headers and not from offsets.
 *
 * Checksums are verified, so that damaged records are not counted. Records are read only of batches that the range
 * cuts. One thread.
 */
final class CountReader implements PartitionReader {
    private final RangeWalk walk;
    private final BatchRecords records;
    private final StructType schema;
    private boolean isDone;
    private ColumnarBatch found;

    CountReader(LogRange range, StructType schema, ReadSettings settings) throws IOException {
        walk = new RangeWalk(range, settings);
        records = new BatchRecords(walk, settings.skipDamaged);
        this.schema = schema;
    }

    public boolean next() throws IOException {
        if (isDone) {
            return false;
        }
        isDone = true;
        try {
            long count = count();
            // Without a group an empty count is a row; a group without records has no row.
            found = count > 0 || !isGrouped() ? row(count) : null;
        } catch (IOException error) {
            throw ReadException.of(error);
        }
        return found != null;
    }

    private boolean isGrouped() {
        StructField[] fields = schema.fields();
        boolean grouped = false;
        for (int i = 0; i < fields.length; i++) {
            grouped = grouped || Columns.number(fields[i].name()) >= 0;
        }
        return grouped;
    }

    private long count() throws IOException {
        long count = 0;
        while (walk.next()) {
            BatchHeader header = walk.header();
            if (header.baseOffset >= walk.start() && header.lastOffset < walk.stop()) {
                count += header.recordCount;
            } else {
                count += countInRange();
            }
        }
        return count;
    }

    private long countInRange() throws IOException {
        long count = 0;
        records.reuse();
        if (!records.open()) {
            return 0;
        }
        RecordCursor cursor = records.cursor;
        try {
            while (cursor.left > 0) {
                cursor.next();
                count += cursor.offset >= walk.start() && cursor.offset < walk.stop() ? 1 : 0;
            }
        } catch (BadRecords error) {
            walk.skipRecords(error.getMessage());
        }
        return count;
    }

    private ColumnarBatch row(long count) {
        StructField[] fields = schema.fields();
        ColumnVector[] columns = new ColumnVector[fields.length];
        for (int i = 0; i < fields.length; i++) {
            ConstantColumnVector column = new ConstantColumnVector(1, fields[i].dataType());
            column.setNotNull();
            int number = Columns.number(fields[i].name());
            if (number == Columns.TOPIC) {
                column.setUtf8String(UTF8String.fromString(walk.range.at.topic));
            } else if (number == Columns.PARTITION) {
                column.setInt(walk.range.at.partition);
            } else {
                column.setLong(count);
            }
            columns[i] = column;
        }
        return new ColumnarBatch(columns, 1);
    }

    public Object get() {
        return found;
    }

    public void close() throws IOException {
        walk.close();
    }
}
