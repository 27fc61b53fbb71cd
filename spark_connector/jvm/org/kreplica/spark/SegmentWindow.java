package org.kreplica.spark;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.zip.CRC32C;

/**
 * A copy of consecutive bytes of a segment, which moves along the segment.
 *
 * Bytes are checked, parsed and handed out from the copy, so later changes of the file have no effect. A move
 * overwrites the copy, or, after `keep`, continues in a second buffer. One thread.
 */
final class SegmentWindow {
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

    /** Loads `count` bytes from a position of the segment, which must have them; returns their position in `data`. */
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
