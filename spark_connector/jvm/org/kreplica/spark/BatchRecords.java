package org.kreplica.spark;

import com.github.luben.zstd.ZstdInputStreamNoFinalizer;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.zip.GZIPInputStream;
import net.jpountz.lz4.LZ4FrameInputStream;
import org.kreplica.spark.RowBatch.HeadersVector;
import org.xerial.snappy.SnappyInputStream;

/**
 * The records of a range's batches, decompressed if necessary. Decompressed bytes stay valid until `reuse`. One
 * thread.
 */
final class BatchRecords {
    final RecordCursor cursor = new RecordCursor();
    private final RangeBatches walk;
    private final boolean checksFirst;
    private final Decompressor decompressor = new Decompressor();
    private boolean isDecompressed;

    /** `checksFirst`: check all records of a batch first, so that a batch with one bad record is skipped whole. */
    BatchRecords(RangeBatches walk, boolean checksFirst) {
        this.walk = walk;
        this.checksFirst = checksFirst;
    }

    /** Moves before the first record of the next batch; false at the end. */
    boolean nextBatch() throws IOException {
        while (walk.next()) {
            if (open()) {
                return true;
            }
        }
        return false;
    }

    /** Moves before the first record of the walk's current batch; false if its records are skipped. */
    boolean open() throws IOException {
        BatchHeader header = walk.header();
        isDecompressed = header.codec() != BatchHeader.NONE;
        int first = decompressor.size();
        try {
            if (isDecompressed) {
                decompressor.add(header, walk.data(), walk.index());
            }
            begin(first);
            while (checksFirst && cursor.left > 0) {
                cursor.next();
            }
            if (checksFirst) {
                begin(first);
            }
            return true;
        } catch (BadRecords error) {
            walk.skipRecords(error.getMessage());
        }
        cursor.left = 0;
        return false;
    }

    private void begin(int first) {
        BatchHeader header = walk.header();
        if (isDecompressed) {
            cursor.begin(header, decompressor.data(), first, decompressor.size());
        } else {
            int records = walk.index() + BatchHeader.SIZE;
            cursor.begin(header, walk.data(), records, walk.index() + header.size);
        }
    }

    /** Returns an identity of the buffer that holds the records; positions with the same identity share a buffer. */
    Object place() {
        return isDecompressed ? (Object) decompressor : walk.data();
    }

    int decompressedBytes() {
        return decompressor.size();
    }

    /** Frees the decompressed bytes; the caller no longer refers to them. */
    void reuse() {
        decompressor.clear();
    }

    /**
     * A cursor over the records of one batch: the positions of their parts in the batch's bytes.
     *
     * Every length is compared with the bytes left before it is used. `next` reads a record up to its value; `headers`
     * reads the rest on request. Positions refer to `data`. One thread.
     */
    static final class RecordCursor {
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

    /** The records of a batch are malformed although its checksum is right; the message says how. */
    static final class BadRecords extends Exception {
        private static final long serialVersionUID = 1;

        BadRecords(String message) {
            super(message, null, false, false);
        }
    }

    /**
     * The records of compressed batches, appended to one buffer that is reused.
     *
     * The codecs are those in Spark's own jars. A batch may decompress to at most MAX_BYTES. One thread.
     */
    static final class Decompressor {
        static final int MAX_BYTES = 256 << 20;
        private static final int GZIP = 1;
        private static final int SNAPPY = 2;
        private static final int LZ4 = 3;
        private static final int FIRST_BYTES = 64 << 10;

        private byte[] bytes = new byte[FIRST_BYTES];
        private int size;

        /** Discards the decompressed bytes. */
        void clear() {
            size = 0;
        }

        int size() {
            return size;
        }

        /** Returns all decompressed bytes; positions stay valid when more are added. */
        ByteBuffer data() {
            return ByteBuffer.wrap(bytes);
        }

        /** Adds the records of the batch that begins at `index`. */
        void add(BatchHeader header, ByteBuffer batch, int index) throws BadRecords {
            byte[] given = new byte[header.size - BatchHeader.SIZE];
            batch.get(index + BatchHeader.SIZE, given);
            int first = size;
            InputStream stream;
            try {
                stream = stream(header.codec(), new ByteArrayInputStream(given));
                try {
                    while (true) {
                        if (size == bytes.length) {
                            grow(first);
                        }
                        int read = stream.read(bytes, size, bytes.length - size);
                        if (read < 0) {
                            return;
                        }
                        size += read;
                    }
                } finally {
                    stream.close();
                }
            } catch (IOException error) {
                size = first;
                throw new BadRecords(String.valueOf(error.getMessage()));
            } catch (RuntimeException error) {
                // The libraries differ in what they raise for invalid bytes.
                size = first;
                throw new BadRecords(error.toString());
            }
        }

        private void grow(int first) throws IOException {
            if (size - first >= MAX_BYTES || bytes.length > Integer.MAX_VALUE / 2) {
                throw new IOException("decompresses to more than the maximum of " + MAX_BYTES + " bytes");
            }
            bytes = Arrays.copyOf(bytes, bytes.length * 2);
        }

        private static InputStream stream(int codec, InputStream given) throws IOException {
            switch (codec) {
                case GZIP:
                    return new GZIPInputStream(given, 1 << 15);
                case SNAPPY:
                    return new SnappyInputStream(given);
                case LZ4:
                    return new LZ4FrameInputStream(given);
                default:
                    return new ZstdInputStreamNoFinalizer(given);
            }
        }
    }
}
