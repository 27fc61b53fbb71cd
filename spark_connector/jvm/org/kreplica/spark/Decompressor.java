package org.kreplica.spark;

import com.github.luben.zstd.ZstdInputStreamNoFinalizer;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.zip.GZIPInputStream;
import net.jpountz.lz4.LZ4FrameInputStream;
import org.xerial.snappy.SnappyInputStream;

/**
 * The records of compressed batches, appended to one buffer that is reused.
 *
 * The codecs are those in Spark's own jars. A batch may decompress to at most MAX_BYTES. One thread.
 */
final class Decompressor {
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
