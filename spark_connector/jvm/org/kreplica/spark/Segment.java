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
import java.util.zip.CRC32C;
import org.kreplica.spark.ReadException.NotForThisReader;

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
        path = directory + "/" + String.format("%020d.log", new Object[] {Long.valueOf(baseOffset)});
        long found = Files.size(Paths.get(path, new String[0]));
        isCutShort = validBytes > found;
        long wanted = validBytes < 0 ? found : Math.min(validBytes, found);
        if (wanted > Integer.MAX_VALUE) {
            throw new NotForThisReader(path + ": the segment is larger than 2 GiB");
        }
        size = (int) wanted;
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

    /**
     * A copy of consecutive bytes of a segment, which moves along the segment.
     *
     * Bytes are checked, parsed and handed out from the copy, so later changes of the file have no effect. A move
     * overwrites the copy, or, after `keep`, continues in a second buffer. One thread.
     */
    static final class SegmentWindow {
        /** The maximum size of one read, unless more is requested; the first reads are smaller. */
        static final int MOST_BYTES = 512 << 10;
        private static final int FIRST_BYTES = 32 << 10;
        private static final ByteBuffer NOTHING = ByteBuffer.allocateDirect(0);

        private final CRC32C checksum = new CRC32C();
        private Segment segment;
        private ByteBuffer bytes = NOTHING;
        private ByteBuffer other = NOTHING;
        private boolean keeps;
        /** The number of the segment's bytes in `bytes`, and the position of the first one. */
        private int length;
        private int first;
        private int readBytes = FIRST_BYTES;

        /** Starts with this segment and releases the previous one. */
        void open(Segment next) throws IOException {
            close();
            next.hold();
            segment = next;
            length = 0;
            first = 0;
        }

        /** Releases the segment. Bytes handed out stay valid. */
        void close() throws IOException {
            if (segment != null) {
                segment.release();
                segment = null;
            }
        }

        /** Sets whether the next move must leave the current bytes unchanged. */
        void keep(boolean wanted) {
            keeps = wanted;
        }

        ByteBuffer data() {
            return bytes;
        }

        /** Loads bytes from a position of the segment, which must have them; returns their position in `data`. */
        int at(int position, int count) throws IOException {
            if (position < first || count > length - (position - first)) {
                move(position, count);
            }
            return position - first;
        }

        private void move(int position, int count) throws IOException {
            ByteBuffer from = bytes;
            if (keeps) {
                bytes = other;
                other = from;
                keeps = false;
            }
            int wanted = Math.min(segment.size - position, Math.max(count, readBytes));
            readBytes = Math.min(MOST_BYTES, readBytes * 2);
            int known = position < first ? 0 : Math.max(0, length - (position - first));
            if (bytes.capacity() < wanted) {
                bytes = ByteBuffer.allocateDirect(wanted);
            }
            ByteBuffer overlap = (ByteBuffer) from.duplicate();
            overlap.limit(length);
            overlap.position(length - known);
            bytes.clear();
            bytes.put((ByteBuffer) overlap.slice());
            bytes.limit(wanted);
            first = position;
            length = 0;
            segment.read(position + known, bytes);
            length = wanted;
        }

        /** Returns the CRC-32C of the segment's bytes, holding no more of them at once than the window's size. */
        int checksum(int position, int count) throws IOException {
            checksum.reset();
            int at = position;
            while (at < position + count) {
                int index = at(at, 1);
                ByteBuffer some = (ByteBuffer) bytes.duplicate();
                some.limit(Math.min(length, index + (position + count - at)));
                some.position(index);
                at += some.remaining();
                checksum.update(some);
            }
            return (int) checksum.getValue();
        }

        boolean hasOnlyZerosFrom(int position) throws IOException {
            for (int at = position; at < segment.size; at++) {
                if (bytes.get(at(at, 1)) != 0) {
                    return false;
                }
            }
            return true;
        }
    }
}

/**
 * A binary search in a segment's `.index` or `.timeindex`.
 *
 * It reads only the entries it compares, and maps nothing: the file of an active segment is longer than its entries,
 * padded with zeros, and is truncated when the segment is closed.
 */
final class IndexFile {
    private final FileChannel channel;
    private final int entryBytes;
    private final ByteBuffer entry;

    private IndexFile(FileChannel channel, int entryBytes) {
        this.channel = channel;
        this.entryBytes = entryBytes;
        entry = ByteBuffer.allocate(entryBytes);
    }

    /** Returns (relative offset, position) of the last entry at or below this offset, else null. */
    static int[] offsetEntry(String path, long relativeOffset) throws IOException {
        ByteBuffer found = search(path, 8, relativeOffset + 1);
        return found == null ? null : new int[] {found.getInt(0), found.getInt(4)};
    }

    /** Returns the relative offset of the last entry with an earlier time (ms since 1970), else 0. */
    static int offsetBefore(String path, long timestamp) throws IOException {
        ByteBuffer found = search(path, 12, timestamp);
        return found == null ? 0 : found.getInt(8);
    }

    /**
     * Returns whether a time index has entries; null if there is no such file, or if its only entry may be space that
     * was allocated ahead.
     */
    static Boolean hasTimes(String path) throws IOException {
        byte[] bytes;
        try {
            bytes = Files.readAllBytes(Paths.get(path, new String[0]));
        } catch (NoSuchFileException error) {
            return null;
        }
        for (int i = 0; i < bytes.length; i++) {
            if (bytes[i] != 0) {
                return Boolean.TRUE;
            }
        }
        return bytes.length == 12 ? null : Boolean.FALSE;
    }

    private static ByteBuffer search(String path, int entryBytes, long below) throws IOException {
        FileChannel channel;
        try {
            channel = FileChannel.open(Paths.get(path, new String[0]), new OpenOption[] {StandardOpenOption.READ});
        } catch (NoSuchFileException error) {
            return null;
        }
        try {
            return new IndexFile(channel, entryBytes).lastBelow(below);
        } finally {
            channel.close();
        }
    }

    private ByteBuffer lastBelow(long below) throws IOException {
        long low = 0;
        long high = channel.size() / entryBytes;
        while (low < high) {
            long middle = (low + high) >>> 1;
            if (read(middle) && key() < below && !(middle > 0 && isPadding())) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        return low > 0 && read(low - 1) ? entry : null;
    }

    private boolean read(long number) throws IOException {
        entry.clear();
        while (entry.hasRemaining()) {
            if (channel.read(entry, number * entryBytes + entry.position()) < 0) {
                return false;
            }
        }
        return true;
    }

    private long key() {
        return entryBytes == 8 ? entry.getInt(0) : entry.getLong(0);
    }

    private boolean isPadding() {
        return entry.getLong(0) == 0 && entry.getInt(entryBytes - 4) == 0;
    }
}
