package org.kreplica.spark;

import java.nio.ByteBuffer;

/**
 * A cursor over the records of one batch: the positions of their parts in the batch's bytes.
 *
 * Every length is compared with the bytes left before it is used. `next` reads a record up to its value; `headers`
 * reads the rest on request. Positions refer to `data`. One thread.
 */
final class RecordCursor {
    ByteBuffer data;
    int left;
    long offset;
    long timestamp;
    int timestampType;
    int keyPosition;
    int keyLength;
    int valuePosition;
    int valueLength;
    private int position;
    private int limit;
    private int recordEnd;
    private int lastDelta;
    private long baseOffset;
    private int lastOffsetDelta;
    private long baseTimestamp;

    /** Starts with the records of a batch, which are in [from, to) of `bytes`. */
    void begin(BatchHeader batch, ByteBuffer bytes, int from, int to) {
        data = bytes;
        position = from;
        limit = to;
        left = batch.recordCount;
        lastDelta = -1;
        baseOffset = batch.baseOffset;
        lastOffsetDelta = (int) (batch.lastOffset - batch.baseOffset);
        timestampType = batch.isLogAppendTime() ? 1 : 0;
        baseTimestamp = batch.baseTimestamp;
        timestamp = batch.maxTimestamp;
    }

    /** Reads the next record; there must be one (`left`). */
    void next() throws BadRecords {
        left--;
        int length = varint(limit);
        if (length < 0 || length > limit - position) {
            throw new BadRecords("a record of " + length + " bytes, but only " + (limit - position) + " are left");
        }
        int end = position + length;
        recordEnd = end;
        position++;
        long timestampDelta = varlong(end);
        int delta = varint(end);
        if (delta <= lastDelta || delta > lastOffsetDelta) {
            throw new BadRecords("a record's offset does not match its batch");
        }
        lastDelta = delta;
        offset = baseOffset + delta;
        if (timestampType == 0) {
            timestamp = baseTimestamp + timestampDelta;
        }
        keyLength = length(end);
        keyPosition = position;
        position += Math.max(0, keyLength);
        valueLength = length(end);
        valuePosition = position;
        position = end;
        if (left == 0 && end != limit) {
            throw new BadRecords("bytes after the last record");
        }
    }

    /** Adds the headers of the record read last to `into`. */
    void headers(HeadersVector into) throws BadRecords {
        position = valuePosition + Math.max(0, valueLength);
        int count = varint(recordEnd);
        if (count < 0 || count > (recordEnd - position) / 2) {
            throw new BadRecords("invalid number of headers: " + count);
        }
        into.begin(count);
        for (int i = 0; i < count; i++) {
            int length = length(recordEnd);
            if (length < 0) {
                throw new BadRecords("a header without a name");
            }
            into.key(position, length);
            position += length;
            length = length(recordEnd);
            into.value(position, length);
            position += Math.max(0, length);
        }
        if (position != recordEnd) {
            throw new BadRecords("bytes after the last header");
        }
    }

    /** Reads the length of the bytes that follow, -1 for null. */
    private int length(int end) throws BadRecords {
        int length = varint(end);
        if (length < -1 || length > end - position) {
            throw new BadRecords("a length of " + length + ", but only " + (end - position) + " bytes are left");
        }
        return length;
    }

    private int varint(int end) throws BadRecords {
        long value = varlong(end);
        if (value < Integer.MIN_VALUE || value > Integer.MAX_VALUE) {
            throw new BadRecords("a number of more than 32 bits");
        }
        return (int) value;
    }

    private long varlong(int end) throws BadRecords {
        // Nearly all numbers in a record take one byte or two.
        if (position + 1 < end) {
            int first = data.get(position);
            if (first >= 0) {
                position++;
                return (first >>> 1) ^ -(first & 1);
            }
            int second = data.get(position + 1);
            if (second >= 0) {
                position += 2;
                int value = (first & 0x7f) | second << 7;
                return (value >>> 1) ^ -(value & 1);
            }
        }
        return longer(end);
    }

    private long longer(int end) throws BadRecords {
        long value = 0;
        for (int shift = 0; shift < 70; shift += 7) {
            if (position >= end) {
                throw new BadRecords("a record ends within a number");
            }
            int b = data.get(position++);
            value |= (long) (b & 0x7f) << shift;
            if (b >= 0) {
                return (value >>> 1) ^ -(value & 1);
            }
        }
        throw new BadRecords("a number of more than 64 bits");
    }
}
