package org.kreplica.spark;

import java.nio.ByteBuffer;
import java.util.Arrays;
import org.apache.spark.sql.execution.vectorized.ConstantColumnVector;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.types.UTF8String;
import org.kreplica.spark.BatchRecords.BadRecords;
import org.kreplica.spark.BatchRecords.RecordCursor;

/** Some thousand rows as Spark's columns, only the wanted ones; reused for the next rows. */
final class RowBatch {
    static final int CAPACITY = 4096;
    private static final int MICROSECONDS = 1000;

    private final ColumnarBatch batch;
    private final TopicPartition at;
    private final RangeBatches walk;
    private BytesVector keys;
    private BytesVector values;
    private NumbersVector offsets;
    private NumbersVector timestamps;
    private NumbersVector timestampTypes;
    private HeadersVector headers;
    private MetadataVector metadata;
    private int rows;

    RowBatch(StructType schema, RangeBatches walk) {
        this.walk = walk;
        at = walk.range().at;
        StructField[] fields = schema.fields();
        ColumnVector[] columns = new ColumnVector[fields.length];
        for (int i = 0; i < fields.length; i++) {
            columns[i] = column(fields[i]);
        }
        batch = new ColumnarBatch(columns);
    }

    private ColumnVector column(StructField field) {
        if (field.name().equals(MetadataVector.NAME)) {
            return metadata = new MetadataVector((StructType) field.dataType(), CAPACITY);
        }
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
        if (metadata != null) {
            metadata.set(rows, walk, record.offset);
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

    /** The headers of each record as an array of (key, value), null for a record without, as in Spark's own source. */
    static final class HeadersVector extends FixedVector {
        private final Pairs pairs;
        private final int[] firsts;
        private final int[] counts;
        private int size;
        private int nulls;

        HeadersVector(DataType type, int capacity) {
            super(type);
            pairs = new Pairs((StructType) ((ArrayType) type).elementType(), capacity);
            firsts = new int[capacity];
            counts = new int[capacity];
        }

        void clear() {
            size = 0;
            nulls = 0;
            pairs.keys.clear();
            pairs.values.clear();
        }

        void begin(int count) {
            firsts[size] = pairs.keys.size();
            counts[size++] = count;
            if (count == 0) {
                nulls++;
            }
        }

        void key(int position, int length) {
            pairs.keys.add(position, length);
        }

        void value(int position, int length) {
            pairs.values.add(position, length);
        }

        void lieIn(ByteBuffer bytes) {
            pairs.keys.lieIn(bytes);
            pairs.values.lieIn(bytes);
        }

        public boolean hasNull() {
            return nulls > 0;
        }

        public int numNulls() {
            return nulls;
        }

        public boolean isNullAt(int row) {
            return counts[row] == 0;
        }

        public ColumnarArray getArray(int row) {
            return counts[row] == 0 ? null : new ColumnarArray(pairs, firsts[row], counts[row]);
        }

        private static final class Pairs extends FixedVector {
            final BytesVector keys;
            final BytesVector values;

            Pairs(StructType type, int capacity) {
                super(type);
                keys = new BytesVector(type.fields()[0].dataType(), capacity);
                values = new BytesVector(type.fields()[1].dataType(), capacity);
            }

            public ColumnVector getChild(int ordinal) {
                return ordinal == 0 ? keys : values;
            }
        }
    }
}

/** Offsets, timestamps (microseconds) or timestamp types. */
final class NumbersVector extends FixedVector {
    final long[] values;

    NumbersVector(DataType type, int capacity) {
        super(type);
        values = new long[capacity];
    }

    public int getInt(int row) {
        return (int) values[row];
    }

    public long getLong(int row) {
        return values[row];
    }
}

/**
 * Keys or values, as positions in the bytes read from the segment or decompressed. Getting one makes the only copy.
 */
final class BytesVector extends FixedVector {
    private ByteBuffer data;
    private int[] positions;
    private int[] lengths;
    private int size;
    private int nulls;

    BytesVector(DataType type, int capacity) {
        super(type);
        positions = new int[capacity];
        lengths = new int[capacity];
    }

    void clear() {
        size = 0;
        nulls = 0;
    }

    /** Adds a position; `length` -1 means null. */
    void add(int position, int length) {
        if (size == positions.length) {
            positions = Arrays.copyOf(positions, size * 2);
            lengths = Arrays.copyOf(lengths, size * 2);
        }
        positions[size] = position;
        lengths[size++] = length;
        if (length < 0) {
            nulls++;
        }
    }

    int size() {
        return size;
    }

    /** Sets the bytes that all positions refer to. */
    void lieIn(ByteBuffer bytes) {
        data = bytes;
    }

    public boolean hasNull() {
        return nulls > 0;
    }

    public int numNulls() {
        return nulls;
    }

    public boolean isNullAt(int row) {
        return lengths[row] < 0;
    }

    public byte[] getBinary(int row) {
        if (lengths[row] < 0) {
            return null;
        }
        byte[] bytes = new byte[lengths[row]];
        data.get(positions[row], bytes);
        return bytes;
    }

    public UTF8String getUTF8String(int row) {
        return UTF8String.fromBytes(getBinary(row));
    }
}
