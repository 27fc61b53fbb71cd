package org.kreplica.spark;

import java.io.IOException;
import java.nio.ByteBuffer;
import org.kreplica.spark.BatchRecords.BadRecords;
import org.kreplica.spark.BatchRecords.RecordCursor;
import org.kreplica.spark.Segment.SegmentWindow;

/**
 * The most recently read header of a record batch of format 2; one object is used for many batches.
 *
 * Numbers are big-endian. The CRC does not cover the base offset and the leader epoch.
 */
final class BatchHeader {
    static final int SIZE = 61;
    static final int LOG_OVERHEAD = 12;
    static final int NONE = 0;
    /** The position in a batch at which the bytes covered by its CRC begin. */
    static final int CRC_START = 21;
    private static final int LEAST_RECORD_BYTES = 7;
    private static final int LAST_CODEC = 4;

    long baseOffset;
    long lastOffset;
    int size;
    int crc;
    int attributes;
    long baseTimestamp;
    long maxTimestamp;
    int leaderEpoch;
    long producerId;
    int producerEpoch;
    int baseSequence;
    int recordCount;

    /** Reads the header at a position with `left` bytes after it. Returns null, or what is wrong with it. */
    String read(SegmentWindow window, int position, int left) throws IOException {
        if (left < LOG_OVERHEAD) {
            return "the file ends within a header";
        }
        int at = window.at(position, Math.min(left, SIZE));
        return read(window.data(), at, left);
    }

    /** Reads the header at `at` in `data`, with `left` bytes there. Returns null, or what is wrong with it. */
    String read(ByteBuffer data, int at, int left) {
        int length = data.getInt(at + 8);
        if (length < SIZE - LOG_OVERHEAD) {
            return "a batch of " + length + " bytes, too few for a header";
        }
        if (length > left - LOG_OVERHEAD) {
            return "a batch of " + length + " bytes, but only " + (left - LOG_OVERHEAD) + " are left";
        }
        if (data.get(at + 16) != 2) {
            return "unknown format " + data.get(at + 16);
        }
        crc = data.getInt(at + 17);
        size = length + LOG_OVERHEAD;
        attributes = data.getShort(at + 21);
        int lastOffsetDelta = data.getInt(at + 23);
        baseOffset = data.getLong(at);
        baseTimestamp = data.getLong(at + 27);
        maxTimestamp = data.getLong(at + 35);
        leaderEpoch = data.getInt(at + 12);
        producerId = data.getLong(at + 43);
        producerEpoch = data.getShort(at + 51);
        baseSequence = data.getInt(at + 53);
        recordCount = data.getInt(at + 57);
        if (lastOffsetDelta < 0 || baseOffset < 0 || baseOffset > Long.MAX_VALUE - 1 - lastOffsetDelta) {
            return "invalid offsets: " + baseOffset + " and " + lastOffsetDelta + " more";
        }
        lastOffset = baseOffset + lastOffsetDelta;
        if (codec() > LAST_CODEC) {
            return "unknown codec " + codec();
        }
        boolean tooMany = codec() == NONE && recordCount > (size - SIZE) / LEAST_RECORD_BYTES;
        if (recordCount < 0 || tooMany || recordCount - 1 > lastOffsetDelta) {
            return recordCount + " records";
        }
        return null;
    }

    int codec() {
        return attributes & 7;
    }

    boolean isLogAppendTime() {
        return (attributes & 8) != 0;
    }

    boolean isTransactional() {
        return (attributes & 16) != 0;
    }

    boolean isControl() {
        return (attributes & 32) != 0;
    }

    /** Returns the type of a control batch at `index`: 0 aborts its producer's transaction, 1 commits it. */
    int controlType(ByteBuffer data, int index) {
        RecordCursor cursor = new RecordCursor();
        cursor.begin(this, data, index + SIZE, index + size);
        try {
            cursor.next();
        } catch (BadRecords error) {
            return -1;
        }
        return cursor.keyLength < 4 ? -1 : (int) data.getShort(cursor.keyPosition + 2);
    }
}
