package org.kreplica.spark;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.zip.CRC32C;

/**
 * A copy of some consecutive bytes of a segment, which moves over it.
 *
 * What is checked, parsed and handed out is the copy, so nothing that happens to the file meanwhile changes it. A move
 * overwrites the copy, or, after `keep`, goes on in a second buffer. One thread.
 */
final class SegmentWindow {
    /** How many bytes are read at once at most, unless more are asked for; the first reads are of fewer. */
    static final int MOST_BYTES = 512 << 10;
    private static final int FIRST_BYTES = 32 << 10;
    private static final ByteBuffer NOTHING = ByteBuffer.allocateDirect(0);

    private final CRC32C checksum = new CRC32C();
    private Segment segment;
    private ByteBuffer bytes = NOTHING;
    private ByteBuffer other = NOTHING;
    private boolean keeps;
    /** The segment's bytes in `bytes`: how many, and where the first one lies. */
    private int length;
    private int first;
    private int readBytes = FIRST_BYTES;

    /** Begin with this segment; the one before it is released. */
    void open(Segment next) throws IOException {
        close();
        next.hold();
        segment = next;
        length = 0;
        first = 0;
    }

    /** Release the segment. What was handed out stays as it is. */
    void close() throws IOException {
        if (segment != null) {
            segment.release();
            segment = null;
        }
    }

    /** Whether the next move leaves the bytes that are there now to those that they were handed out to. */
    void keep(boolean wanted) {
        keeps = wanted;
    }

    ByteBuffer data() {
        return bytes;
    }

    /** Have `count` bytes from a position of the segment, which has that many; returns where in `data` they begin. */
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

    /** The CRC-32C of bytes that the segment has, of which no more are held at once than the window holds anyway. */
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
