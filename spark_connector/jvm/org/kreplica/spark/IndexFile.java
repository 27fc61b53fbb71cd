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
