package org.kreplica.spark;

import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.types.UTF8String;

/** The base of our columns: refuses every access that Spark's interface has; each kind overrides what it supports. */
abstract class FixedVector extends ColumnVector {
    FixedVector(DataType type) {
        super(type);
    }

    public void close() {
    }

    public boolean hasNull() {
        return false;
    }

    public int numNulls() {
        return 0;
    }

    public boolean isNullAt(int row) {
        return false;
    }

    public boolean getBoolean(int row) {
        throw wrongType();
    }

    public byte getByte(int row) {
        throw wrongType();
    }

    public short getShort(int row) {
        throw wrongType();
    }

    public int getInt(int row) {
        throw wrongType();
    }

    public long getLong(int row) {
        throw wrongType();
    }

    public float getFloat(int row) {
        throw wrongType();
    }

    public double getDouble(int row) {
        throw wrongType();
    }

    public ColumnarArray getArray(int row) {
        throw wrongType();
    }

    public ColumnarMap getMap(int row) {
        throw wrongType();
    }

    public Decimal getDecimal(int row, int precision, int scale) {
        throw wrongType();
    }

    public UTF8String getUTF8String(int row) {
        throw wrongType();
    }

    public byte[] getBinary(int row) {
        throw wrongType();
    }

    public ColumnVector getChild(int ordinal) {
        throw wrongType();
    }

    private UnsupportedOperationException wrongType() {
        return new UnsupportedOperationException("not supported by a column of " + dataType().simpleString());
    }
}
