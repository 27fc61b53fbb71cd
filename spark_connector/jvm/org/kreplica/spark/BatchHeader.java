package org.kreplica.spark;

import java.nio.ByteBuffer;
import java.util.zip.CRC32C;

/**
 * The header of a record batch of format 2, as it was read last; one object for many batches.
 *
 * Numbers are big-endian. The base offset and the leader epoch lie outside of what the CRC covers.
 */
final class BatchHeader {
    static final int SIZE = 61;
    static final int LOG_OVERHEAD = 12;
    static final int NONE = 0;
    private static final int CRC_START = 21;
    private static final int LEAST_RECORD_BYTES = 7;
    private static final int LAST_CODEC = 4;

    private final CRC32C checksum = new CRC32C();
    long baseOffset;
    long lastOffset;
    int size;
    int position;
    int attributes;
    long baseTimestamp;
    long maxTimestamp;
    long producerId;
    int recordCount;

    /** Read the header at a position, of which `end - position` bytes are there: null, or what is wrong with it. */
    String read(ByteBuffer data, int at, int end) {
        if (end - at < LOG_OVERHEAD) {
            return "the bytes end within a header";
        }
        int length = data.getInt(at + 8);
        if (length < SIZE - LOG_OVERHEAD) {
            return "a batch of " + length + " bytes";
        }
        if (length > end - at - LOG_OVERHEAD) {
            return "a batch of " + length + " bytes, where " + (end - at - LOG_OVERHEAD) + " are left";
        }
        if (data.get(at + 16) != 2) {
            return "format " + data.get(at + 16);
        }
        position = at;
        size = length + LOG_OVERHEAD;
        attributes = data.getShort(at + 21);
        int lastOffsetDelta = data.getInt(at + 23);
        baseOffset = data.getLong(at);
        baseTimestamp = data.getLong(at + 27);
        maxTimestamp = data.getLong(at + 35);
        producerId = data.getLong(at + 43);
        recordCount = data.getInt(at + 57);
        if (lastOffsetDelta < 0 || baseOffset < 0 || baseOffset > Long.MAX_VALUE - 1 - lastOffsetDelta) {
            return "offset " + baseOffset + " and " + lastOffsetDelta + " more";
        }
        lastOffset = baseOffset + lastOffsetDelta;
        if (codec() > LAST_CODEC) {
            return "codec " + codec();
        }
        boolean tooMany = codec() == NONE && recordCount > (size - SIZE) / LEAST_RECORD_BYTES;
        if (recordCount < 0 || tooMany || recordCount - 1 > lastOffsetDelta) {
            return recordCount + " records";
        }
        return null;
    }

    /** Whether the batch that was read last fits its checksum. */
    boolean fitsChecksum(ByteBuffer data) {
        checksum.reset();
        ByteBuffer covered = (ByteBuffer) data.duplicate();
        covered.limit(position + size);
        covered.position(position + CRC_START);
        checksum.update(covered);
        return (int) checksum.getValue() == data.getInt(position + 17);
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
}
