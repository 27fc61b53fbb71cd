package org.kreplica.spark;

import java.nio.ByteBuffer;
import java.util.Arrays;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.unsafe.types.UTF8String;

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
