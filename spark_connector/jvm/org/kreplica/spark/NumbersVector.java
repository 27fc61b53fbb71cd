package org.kreplica.spark;

import org.apache.spark.sql.types.DataType;

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
