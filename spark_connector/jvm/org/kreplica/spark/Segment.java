package org.kreplica.spark;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.OpenOption;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;

/**
 * One segment of a log and its indexes, mapped read-only.
 *
 * A mapping holds the bytes of a file that is deleted meanwhile; it goes with the object that points to it. Indexes
 * are hints: what one says is believed after a look at the batch that it points to.
 */
final class Segment {
    final long baseOffset;
    final String path;
    /** The valid bytes, beyond which nothing is looked at. */
    final int size;
    /** Whether the file ends before what its writer has published. */
    final boolean isCutShort;
    private ByteBuffer data;

    /** `validBytes`: what the writer has published, or -1 for the whole file. */
    Segment(String directory, long baseOffset, long validBytes) throws IOException {
        this.baseOffset = baseOffset;
        path = directory + "/" + fileName(baseOffset, ".log");
        long found = Files.size(Paths.get(path, new String[0]));
        isCutShort = validBytes > found;
        long wanted = validBytes < 0 ? found : Math.min(validBytes, found);
        if (wanted > Integer.MAX_VALUE) {
            throw new NotForThisReader(path + ": a segment of more than 2 GiB");
        }
        size = (int) wanted;
    }

    static String fileName(long baseOffset, String suffix) {
        return String.format("%020d%s", new Object[] {Long.valueOf(baseOffset), suffix});
    }

    /** Map the file now, so that it cannot vanish before it is read. */
    void map() throws IOException {
        if (data == null) {
            data = mapped(path, size);
        }
    }

    ByteBuffer data() throws IOException {
        map();
        return data;
    }

    /** Where a walk to the batch that holds `offset` may begin: the position of a whole batch at or below it. */
    int hint(long offset) throws IOException {
        int[] entry = IndexFile.offsetEntry(indexPath(".index"), offset - baseOffset);
        if (entry == null || entry[1] < 0 || entry[1] >= size) {
            return 0;
        }
        BatchHeader header = new BatchHeader();
        boolean fits = header.read(data(), entry[1], size) == null && header.baseOffset <= offset
            && header.lastOffset == baseOffset + entry[0];
        return fits ? entry[1] : 0;
    }

    /** An offset of this segment, at or below which no record has this time (ms since 1970) or a later one. */
    long offsetBefore(long timestamp) throws IOException {
        return baseOffset + Math.max(0, IndexFile.offsetBefore(indexPath(".timeindex"), timestamp));
    }

    boolean hasOnlyZeros(int position) throws IOException {
        ByteBuffer bytes = data();
        int at = position;
        while (at + 8 <= size) {
            if (bytes.getLong(at) != 0) {
                return false;
            }
            at += 8;
        }
        while (at < size) {
            if (bytes.get(at) != 0) {
                return false;
            }
            at++;
        }
        return true;
    }

    private String indexPath(String suffix) {
        return path.substring(0, path.length() - ".log".length()) + suffix;
    }

    private static ByteBuffer mapped(String path, long bytes) throws IOException {
        FileChannel channel = FileChannel.open(Paths.get(path, new String[0]),
            new OpenOption[] {StandardOpenOption.READ});
        try {
            if (bytes > channel.size()) {
                throw new NoSuchFileException(path, null, "became shorter while it was opened");
            }
            return bytes == 0 ? ByteBuffer.allocate(0) : channel.map(FileChannel.MapMode.READ_ONLY, 0, bytes);
        } finally {
            channel.close();
        }
    }
}
