package org.kreplica.spark;

import java.io.IOException;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.expressions.aggregate.Max;
import org.apache.spark.sql.connector.expressions.aggregate.Min;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.execution.vectorized.ConstantColumnVector;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.types.UTF8String;
import org.kreplica.spark.BatchRecords.BadRecords;
import org.kreplica.spark.BatchRecords.RecordCursor;
import org.kreplica.spark.ReaderFactory.ReadSettings;

/**
 * Returns the number of records in a task's range as one row, counted from batch headers and not from offsets, and the
 * least and the largest offset of a record.
 *
 * Checksums are verified, so that damaged records are not counted. Records are read only of batches that the range
 * cuts, and for offsets of batches from which compaction has removed records. One thread.
 */
final class CountReader implements PartitionReader {
    private static final String COUNT = "count(*)";
    private static final String LEAST = "min(offset)";
    private static final String MOST = "max(offset)";

    private final RangeBatches walk;
    private final BatchRecords records;
    private final StructType schema;
    private final boolean needsOffsets;
    private long count;
    private long least;
    private long most;
    private boolean isDone;
    private ColumnarBatch found;

    CountReader(RangeBatches walk, StructType schema, ReadSettings settings) {
        this.walk = walk;
        records = new BatchRecords(walk, settings.skipDamaged);
        this.schema = schema;
        List names = Arrays.asList(schema.fieldNames());
        needsOffsets = names.contains(LEAST) || names.contains(MOST);
    }

    /** Returns the name of the column for a function, null for one that this class does not compute. */
    static String nameOf(AggregateFunc function) {
        if (function instanceof CountStar) {
            return COUNT;
        }
        Expression of = function instanceof Min ? ((Min) function).column()
            : function instanceof Max ? ((Max) function).column() : null;
        boolean isOffset = of instanceof NamedReference && ((NamedReference) of).fieldNames().length == 1
            && Columns.number(((NamedReference) of).fieldNames()[0]) == Columns.OFFSET;
        return !isOffset ? null : function instanceof Min ? LEAST : MOST;
    }

    public boolean next() throws IOException {
        if (isDone) {
            return false;
        }
        isDone = true;
        try {
            count();
            // Without a group an empty count is a row; a group without records has no row.
            found = count > 0 || !isGrouped() ? row() : null;
        } catch (IOException error) {
            throw ReadException.of(error);
        }
        return found != null;
    }

    private boolean isGrouped() {
        return Columns.index(schema, Columns.TOPIC) >= 0 || Columns.index(schema, Columns.PARTITION) >= 0;
    }

    private void count() throws IOException {
        while (walk.next()) {
            BatchHeader header = walk.header();
            boolean isInside = header.baseOffset >= walk.start() && header.lastOffset < walk.stop();
            boolean isWhole = header.recordCount == header.lastOffset - header.baseOffset + 1;
            if (isInside && (isWhole || !needsOffsets)) {
                add(header.recordCount, header.baseOffset, header.lastOffset);
            } else {
                countInRange();
            }
        }
    }

    private void add(long records, long first, long last) {
        least = count == 0 ? first : least;
        most = last;
        count += records;
    }

    private void countInRange() throws IOException {
        records.reuse();
        if (!records.open()) {
            return;
        }
        RecordCursor cursor = records.cursor;
        try {
            while (cursor.left > 0) {
                cursor.next();
                if (cursor.offset >= walk.start() && cursor.offset < walk.stop()) {
                    add(1, cursor.offset, cursor.offset);
                }
            }
        } catch (BadRecords error) {
            walk.skipRecords(error.getMessage());
        }
    }

    private ColumnarBatch row() {
        StructField[] fields = schema.fields();
        ColumnVector[] columns = new ColumnVector[fields.length];
        for (int i = 0; i < fields.length; i++) {
            ConstantColumnVector column = new ConstantColumnVector(1, fields[i].dataType());
            String name = fields[i].name();
            column.setNotNull();
            if (Columns.number(name) == Columns.TOPIC) {
                column.setUtf8String(UTF8String.fromString(walk.range().at.topic));
            } else if (Columns.number(name) == Columns.PARTITION) {
                column.setInt(walk.range().at.partition);
            } else if (name.equals(COUNT)) {
                column.setLong(count);
            } else if (count == 0) {
                column.setNull();
            } else {
                column.setLong(name.equals(LEAST) ? least : most);
            }
            columns[i] = column;
        }
        return new ColumnarBatch(columns, 1);
    }

    public CustomTaskMetric[] currentMetricsValues() {
        return ReadMetrics.of(walk, count);
    }

    public Object get() {
        return found;
    }

    public void close() throws IOException {
        walk.close();
    }
}
