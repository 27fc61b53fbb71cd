package org.kreplica.spark;

import com.github.luben.zstd.ZstdOutputStreamNoFinalizer;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.zip.CRC32C;
import java.util.zip.GZIPOutputStream;
import net.jpountz.lz4.LZ4FrameOutputStream;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.xerial.snappy.SnappyOutputStream;

/**
 * Builds record batches of format 2 from rows.
 *
 * The producer's id, its epoch and the sequence number are filled in when the batch is sent (`stamp`). One thread.
 */
final class BatchBuilder {
    private static final int FIRST_BYTES = 4096;
    private static final int MAGIC = 2;
    private static final int ATTRIBUTES = 21;
    private static final int PRODUCER_ID = 43;
    private static final int TRANSACTIONAL = 16;
    private static final String[] CODECS = {"none", "gzip", "snappy", "lz4", "zstd"};

    private final int codec;
    private byte[] bytes = new byte[FIRST_BYTES];
    private int size;
    private int count;
    private long timestamp;

    BatchBuilder(String codec) {
        this.codec = Arrays.asList(CODECS).indexOf(codec);
    }

    /** Returns the size of the records so far. */
    int size() {
        return size;
    }

    /** Adds a record; null means null. */
    void add(byte[] key, byte[] value, ArrayData headers) {
        if (count == 0) {
            timestamp = System.currentTimeMillis();
        }
        int headerCount = headers == null ? 0 : headers.numElements();
        // Attributes, and the difference of the timestamp.
        int length = 2 + sizeOf(count) + field(key) + field(value) + sizeOf(headerCount);
        for (int i = 0; i < headerCount; i++) {
            InternalRow header = headers.getStruct(i, 2);
            length += field(header.getUTF8String(0).getBytes()) + field(header.getBinary(1));
        }
        reserve(length + 5);
        varint(length);
        bytes[size++] = 0;
        bytes[size++] = 0;
        varint(count++);
        put(key);
        put(value);
        varint(headerCount);
        for (int i = 0; i < headerCount; i++) {
            InternalRow header = headers.getStruct(i, 2);
            put(header.getUTF8String(0).getBytes());
            put(header.getBinary(1));
        }
    }

    private static int field(byte[] value) {
        return value == null ? 1 : sizeOf(value.length) + value.length;
    }

    private static int sizeOf(int value) {
        int left = (value << 1) ^ (value >> 31);
        int found = 1;
        while ((left & ~0x7f) != 0) {
            left >>>= 7;
            found++;
        }
        return found;
    }

    private void reserve(int more) {
        if (more > bytes.length - size) {
            bytes = Arrays.copyOf(bytes, Math.max(bytes.length * 2, size + more));
        }
    }

    private void varint(int value) {
        int left = (value << 1) ^ (value >> 31);
        while ((left & ~0x7f) != 0) {
            bytes[size++] = (byte) (left & 0x7f | 0x80);
            left >>>= 7;
        }
        bytes[size++] = (byte) left;
    }

    private void put(byte[] value) {
        if (value == null) {
            varint(-1);
            return;
        }
        varint(value.length);
        System.arraycopy(value, 0, bytes, size, value.length);
        size += value.length;
    }

    /** Returns the batch of the records added since the last one. */
    byte[] finish() throws IOException {
        byte[] records = compressed();
        ByteBuffer batch = ByteBuffer.allocate(BatchHeader.SIZE + records.length);
        batch.putLong(0).putInt(batch.capacity() - BatchHeader.LOG_OVERHEAD).putInt(-1).put((byte) MAGIC).putInt(0);
        batch.putShort((short) codec).putInt(count - 1).putLong(timestamp).putLong(timestamp);
        batch.putLong(-1).putShort((short) -1).putInt(-1).putInt(count).put(records);
        size = 0;
        count = 0;
        return batch.array();
    }

    private byte[] compressed() throws IOException {
        if (codec == 0) {
            return Arrays.copyOf(bytes, size);
        }
        ByteArrayOutputStream found = new ByteArrayOutputStream(size / 2 + BatchHeader.SIZE);
        OutputStream stream = stream(found);
        stream.write(bytes, 0, size);
        stream.close();
        return found.toByteArray();
    }

    private OutputStream stream(OutputStream into) throws IOException {
        switch (codec) {
            case 1:
                return new GZIPOutputStream(into);
            case 2:
                return new SnappyOutputStream(into);
            case 3:
                return new LZ4FrameOutputStream(into, LZ4FrameOutputStream.BLOCKSIZE.SIZE_64KB,
                    new LZ4FrameOutputStream.FLG.Bits[] {LZ4FrameOutputStream.FLG.Bits.BLOCK_INDEPENDENCE});
            default:
                return new ZstdOutputStreamNoFinalizer(into);
        }
    }

    /** Returns the number of records of a batch. */
    static int count(byte[] batch) {
        return ByteBuffer.wrap(batch).getInt(BatchHeader.SIZE - 4);
    }

    /** Makes the batch one of a transaction of this producer. */
    static void stamp(byte[] batch, long producerId, int epoch, int sequence) {
        ByteBuffer bytes = ByteBuffer.wrap(batch);
        bytes.putShort(ATTRIBUTES, (short) (bytes.getShort(ATTRIBUTES) | TRANSACTIONAL));
        bytes.putLong(PRODUCER_ID, producerId);
        bytes.putShort(PRODUCER_ID + 8, (short) epoch);
        bytes.putInt(PRODUCER_ID + 10, sequence);
        CRC32C checksum = new CRC32C();
        checksum.update(batch, BatchHeader.CRC_START, batch.length - BatchHeader.CRC_START);
        bytes.putInt(BatchHeader.CRC_START - 4, (int) checksum.getValue());
    }
}
