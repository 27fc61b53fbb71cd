package org.kreplica.spark;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.ClosedChannelException;
import java.nio.channels.FileChannel;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.OpenOption;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;

/**
 * One segment of a log and its indexes.
 *
 * An open file keeps its bytes when it is deleted. It is read and not mapped: if a mapped page disappears, because
 * the file is truncated or its disk fails, native code such as the checksum's crashes the JVM. Indexes are only
 * hints: an entry is used after the batch it points to is checked. One thread.
 */
final class Segment {
    final long baseOffset;
    final String path;
    /** The number of valid bytes; nothing after them is read. */
    final int size;
    /** Whether the file ends before the end that its writer has published. */
    final boolean isCutShort;
    private FileChannel channel;

    /** `validBytes`: the writer's published size, or -1 for the whole file. */
    Segment(String directory, long baseOffset, long validBytes) throws IOException {
        this.baseOffset = baseOffset;
        path = directory + "/" + fileName(baseOffset, ".log");
        long found = Files.size(Paths.get(path, new String[0]));
        isCutShort = validBytes > found;
        long wanted = validBytes < 0 ? found : Math.min(validBytes, found);
        if (wanted > Integer.MAX_VALUE) {
            throw new NotForThisReader(path + ": the segment is larger than 2 GiB");
        }
        size = (int) wanted;
    }

    static String fileName(long baseOffset, String suffix) {
        return String.format("%020d%s", new Object[] {Long.valueOf(baseOffset), suffix});
    }

    /** Opens the file, so that it cannot vanish before it is read. Raises NoSuchFileException. */
    void hold() throws IOException {
        if (channel != null) {
            return;
        }
        FileChannel opened = FileChannel.open(Paths.get(path, new String[0]),
            new OpenOption[] {StandardOpenOption.READ});
        if (size > opened.size()) {
            opened.close();
            throw new NoSuchFileException(path, null, "became shorter while it was opened");
        }
        channel = opened;
    }

    void release() throws IOException {
        if (channel != null) {
            channel.close();
            channel = null;
        }
    }

    /** Fills `into` with the bytes from a position on; the segment must be held. */
    void read(int position, ByteBuffer into) throws IOException {
        int begin = into.position();
        while (into.hasRemaining()) {
            int at = position + into.position() - begin;
            if (readSome(into, at) < 0) {
                throw new ReadException(path + ": ends at byte " + at + " of " + size
                    + ": the file was made shorter while it was read");
            }
        }
    }

    private int readSome(ByteBuffer into, int at) throws IOException {
        try {
            return channel.read(into, at);
        } catch (IOException error) {
            if (error instanceof ClosedChannelException) {
                throw error;
            }
            throw new FileSystemException(path, null, "byte " + at + ": " + error.getMessage());
        }
    }

    /**
     * Returns where a walk to the batch with `offset` may begin: the position of a complete batch at or below it.
     * `window` is open on this segment.
     */
    int hint(long offset, SegmentWindow window) throws IOException {
        int[] entry = IndexFile.offsetEntry(indexPath(".index"), offset - baseOffset);
        if (entry == null || entry[1] < 0 || entry[1] >= size) {
            return 0;
        }
        BatchHeader header = new BatchHeader();
        boolean fits = header.read(window, entry[1], size - entry[1]) == null && header.baseOffset <= offset
            && header.lastOffset == baseOffset + entry[0];
        return fits ? entry[1] : 0;
    }

    /** Returns an offset of this segment at or below which no record has this time (ms since 1970) or a later one. */
    long offsetBefore(long timestamp) throws IOException {
        return baseOffset + Math.max(0, IndexFile.offsetBefore(indexPath(".timeindex"), timestamp));
    }

    /** Returns whether the closed segment ever held records; null if an empty one does not show it. */
    Boolean heldRecords() throws IOException {
        return size > 0 ? Boolean.TRUE : IndexFile.hasTimes(indexPath(".timeindex"));
    }

    private String indexPath(String suffix) {
        return path.substring(0, path.length() - ".log".length()) + suffix;
    }
}
