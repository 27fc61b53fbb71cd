package org.kreplica.spark;

import java.nio.ByteBuffer;
import org.apache.spark.sql.execution.vectorized.ConstantColumnVector;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.types.UTF8String;

/** Some thousand rows as Spark's columns, only the wanted ones; reused for the next rows. */
final class RowBatch {
    static final int CAPACITY = 4096;
    private static final int MICROSECONDS = 1000;

    private final ColumnarBatch batch;
    private final TopicPartition at;
    private BytesVector keys;
    private BytesVector values;
    private NumbersVector offsets;
    private NumbersVector timestamps;
    private NumbersVector timestampTypes;
    private HeadersVector headers;
    private int rows;

    RowBatch(StructType schema, TopicPartition at) {
        this.at = at;
        StructField[] fields = schema.fields();
        ColumnVector[] columns = new ColumnVector[fields.length];
        for (int i = 0; i < fields.length; i++) {
            columns[i] = column(fields[i]);
        }
        batch = new ColumnarBatch(columns);
    }

    private ColumnVector column(StructField field) {
        switch (Columns.number(field.name())) {
            case Columns.KEY:
                return keys = new BytesVector(field.dataType(), CAPACITY);
            case Columns.VALUE:
                return values = new BytesVector(field.dataType(), CAPACITY);
            case Columns.OFFSET:
                return offsets = new NumbersVector(field.dataType(), CAPACITY);
            case Columns.TIMESTAMP:
                return timestamps = new NumbersVector(field.dataType(), CAPACITY);
            case Columns.TIMESTAMP_TYPE:
                return timestampTypes = new NumbersVector(field.dataType(), CAPACITY);
            case Columns.HEADERS:
                return headers = new HeadersVector(field.dataType(), CAPACITY);
            default:
                ConstantColumnVector constant = new ConstantColumnVector(CAPACITY, field.dataType());
                constant.setNotNull();
                if (Columns.number(field.name()) == Columns.TOPIC) {
                    constant.setUtf8String(UTF8String.fromString(at.topic));
                } else {
                    constant.setInt(at.partition);
                }
                return constant;
        }
    }

    int rows() {
        return rows;
    }

    void clear() {
        rows = 0;
        if (keys != null) {
            keys.clear();
        }
        if (values != null) {
            values.clear();
        }
        if (headers != null) {
            headers.clear();
        }
    }

    /** Adds the record that the cursor read last. */
    void add(RecordCursor record) throws BadRecords {
        if (keys != null) {
            keys.add(record.keyPosition, record.keyLength);
        }
        if (values != null) {
            values.add(record.valuePosition, record.valueLength);
        }
        if (headers != null) {
            record.headers(headers);
        }
        if (offsets != null) {
            offsets.values[rows] = record.offset;
        }
        if (timestamps != null) {
            timestamps.values[rows] = microseconds(record.timestamp);
        }
        if (timestampTypes != null) {
            timestampTypes.values[rows] = record.timestampType;
        }
        rows++;
    }

    private long microseconds(long milliseconds) {
        long found = milliseconds * MICROSECONDS;
        if (found / MICROSECONDS != milliseconds) {
            throw new ReadException(at + ": timestamp " + milliseconds + " is out of range of Spark's type");
        }
        return found;
    }

    /** Returns the rows, which point into these bytes. */
    ColumnarBatch finish(ByteBuffer bytes) {
        if (keys != null) {
            keys.lieIn(bytes);
        }
        if (values != null) {
            values.lieIn(bytes);
        }
        if (headers != null) {
            headers.lieIn(bytes);
        }
        batch.setNumRows(rows);
        return batch;
    }
}
