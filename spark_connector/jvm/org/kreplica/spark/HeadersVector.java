package org.kreplica.spark;

import java.nio.ByteBuffer;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;

/** The headers of each record as an array of (key, value), null for a record without, as in Spark's own source. */
final class HeadersVector extends FixedVector {
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
