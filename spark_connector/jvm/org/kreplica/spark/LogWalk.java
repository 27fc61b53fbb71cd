package org.kreplica.spark;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import org.kreplica.spark.Segment.SegmentWindow;

/**
 * A walk through the batches of a log with offsets in [start, stop); it yields only complete batches in order.
 *
 * It follows file positions, so a batch with a wrong offset does not mislead it. A batch whose checksum or neighbours
 * do not match is damaged, and so is everything up to the next batch that does match. `next` then raises
 * ReadException, or, if damage is to be skipped, continues after it and adds it to `lost`. One thread.
 */
final class LogWalk {
    final BatchHeader header = new BatchHeader();
    final List lost = new ArrayList();
    /** The least offset that the next batch may have. */
    long nextOffset;
    /** Whether the walk has reached the end of the log. */
    boolean isAtEnd;
    /** The number of batches returned, and their bytes. */
    long batches;
    long bytes;
    private final PartitionLog log;
    private final long start;
    private final long stop;
    private final boolean skipDamaged;
    private final boolean failOnDataLoss;
    /** The offset up to which the end of a Kafka log is known to be on disk; -1 for other logs. */
    private final long promised;
    private final SegmentWindow window = new SegmentWindow();
    private int number;
    private int position;
    /** The position of the batch returned last, in the segment and in the window. */
    private int givenPosition;
    private int givenIndex;

    /** A walk that skips damage and gaps. */
    LogWalk(PartitionLog log, long start, long stop) throws IOException {
        this(log, start, stop, true, false);
    }

    LogWalk(PartitionLog log, long start, long stop, boolean skipDamaged, boolean failOnDataLoss)
        throws IOException {
        this.log = log;
        this.start = start;
        this.stop = stop;
        this.skipDamaged = skipDamaged;
        this.failOnDataLoss = failOnDataLoss;
        promised = LogEnd.promised(log);
        number = log.segmentOf(start);
        Segment segment = log.segments[number];
        nextOffset = segment.baseOffset;
        if (number == 0 && log.lacksStart) {
            note(new LostRange(log.logStartOffset, nextOffset, segment.path, 0, 0,
                "the segments before it are missing"));
        }
        window.open(segment);
        position = start > segment.baseOffset ? segment.hint(start, window) : 0;
        if (position > 0) {
            nextOffset = window.data().getLong(window.at(position, BatchHeader.LOG_OVERHEAD));
        }
    }

    void close() throws IOException {
        window.close();
    }

    /** Returns the first offset of the batch's segment. */
    long segment() {
        return log.segments[number].baseOffset;
    }

    /** Returns the bytes of the batch; `next` overwrites them unless `keepData` is set. */
    ByteBuffer data() {
        return window.data();
    }

    /** Returns the position in `data` at which the batch begins. */
    int index() {
        return givenIndex;
    }

    /** Sets whether `next` must leave `data` unchanged and use another buffer if necessary. */
    void keepData(boolean wanted) {
        window.keep(wanted);
    }

    /** Moves to the next batch with an offset in the range; false at the end of the range. */
    boolean next() throws IOException {
        while (nextOffset < stop && findSegment()) {
            Segment segment = log.segments[number];
            // Batches below the start are skipped by their headers.
            String wrong = header.read(window, position, segment.size - position);
            boolean passed = wrong == null && header.lastOffset < start;
            if (wrong == null && !passed && !fitsChecksum(segment, position)) {
                wrong = "the checksum does not match";
            }
            if (wrong == null) {
                wrong = outOfPlace(segment);
            }
            if (wrong != null) {
                skipBad(segment, wrong);
                continue;
            }
            if (header.baseOffset >= stop) {
                return false;
            }
            givenPosition = position;
            position += header.size;
            nextOffset = header.lastOffset + 1;
            if (!passed) {
                batches++;
                bytes += header.size;
                givenIndex = window.at(givenPosition, header.size);
                return true;
            }
        }
        return false;
    }

    /** Returns whether the batch matches its checksum; if so, the window holds all of it. */
    private boolean fitsChecksum(Segment segment, int at) throws IOException {
        // Includes the offset of the next batch. A damaged length must not make the window larger than usual.
        int whole = (int) Math.min((long) header.size + BatchHeader.LOG_OVERHEAD, segment.size - at);
        if (whole <= SegmentWindow.MOST_BYTES) {
            window.at(at, whole);
        }
        int covered = header.size - BatchHeader.CRC_START;
        if (window.checksum(at + BatchHeader.CRC_START, covered) != header.crc) {
            return false;
        }
        window.at(at, whole);
        return true;
    }

    private boolean findSegment() throws IOException {
        while (position >= log.segments[number].size) {
            Segment segment = log.segments[number];
            boolean last = number + 1 == log.segments.length;
            long following = last ? log.standing == null ? nextOffset : log.standing.logEndOffset
                : log.segments[number + 1].baseOffset;
            // Compaction may have taken all offsets below this segment.
            long first = Math.max(nextOffset, segment.baseOffset);
            if (first < following && (segment.isCutShort || !last && log.isLost(segment, first, following))) {
                nextOffset = following;
                note(new LostRange(first, following, segment.path, segment.size, segment.size,
                    "the file is cut short"));
            }
            if (last) {
                isAtEnd = true;
                return false;
            }
            number++;
            position = 0;
            log.hold(number);
            window.open(log.segments[number]);
        }
        return true;
    }

    /** Returns why the batch is out of place, or null. The checksum does not cover its offset. */
    private String outOfPlace(Segment segment) throws IOException {
        if (header.baseOffset < nextOffset) {
            return "offset " + header.baseOffset + " where " + nextOffset + " or a higher one must follow";
        }
        int behind = position + header.size;
        long following = Long.MAX_VALUE;
        if (behind + BatchHeader.LOG_OVERHEAD <= segment.size) {
            following = window.data().getLong(window.at(behind, BatchHeader.LOG_OVERHEAD));
            following = following > nextOffset ? following : Long.MAX_VALUE;
        } else if (number + 1 < log.segments.length) {
            following = log.segments[number + 1].baseOffset;
        } else if (log.standing != null) {
            following = log.standing.logEndOffset;
        }
        boolean jumped = header.baseOffset > nextOffset && following <= header.lastOffset;
        return jumped ? "offset " + header.baseOffset + ", which overlaps the next batch" : null;
    }

    /** Skips the bad batch at the position: either damage, or padding after the last batch. */
    private void skipBad(Segment segment, String reason) throws IOException {
        boolean last = number + 1 == log.segments.length;
        boolean mayEnd = last ? log.standing == null : log.segments[number + 1].baseOffset == nextOffset;
        if (mayEnd && window.hasOnlyZerosFrom(position)) {
            position = segment.size;
        } else {
            skipLost(segment, reason, last);
        }
    }

    /** Marks the batch returned last as damaged, because its contents are not records. */
    void skipRecords(String reason) throws IOException {
        Segment segment = log.segments[number];
        note(new LostRange(header.baseOffset, nextOffset, segment.path, givenPosition,
            givenPosition + header.size, reason));
    }

    private void skipLost(Segment segment, String reason, boolean last) throws IOException {
        long first = nextOffset;
        int bad = position;
        long next = -1;
        position = resync(segment, bad + 1, first);
        if (position < segment.size) {
            next = header.baseOffset;
        } else if (!last) {
            next = log.segments[number + 1].baseOffset;
        } else if (log.standing != null) {
            next = log.standing.logEndOffset;
        }
        if (next < 0 && first >= promised) {
            return; // an incomplete end, which was never acknowledged
        }
        nextOffset = next < 0 ? Math.max(first, stop) : next;
        note(new LostRange(first, next, segment.path, bad, position, reason));
    }

    private int resync(Segment segment, int from, long least) throws IOException {
        for (int at = from; at <= segment.size - BatchHeader.SIZE; at++) {
            int index = window.at(at, BatchHeader.SIZE);
            if (window.data().get(index + 16) == 2 && header.read(window, at, segment.size - at) == null
                && header.baseOffset >= least && fitsChecksum(segment, at)) {
                return at;
            }
        }
        return segment.size;
    }

    private void note(LostRange range) {
        if (range.next >= 0 && range.next <= start || range.first >= stop) {
            return;
        }
        if (!skipDamaged && (failOnDataLoss || !range.isGone)) {
            throw new ReadException(log.at + ": damaged records, " + range + "; skipDamaged=true skips them"
                + (range.isGone ? ", and so does failOnDataLoss=false" : ""));
        }
        KreplicaProvider.LOGGER.warn("{}: skipped damaged records, {}", log.at, range);
        lost.add(range);
    }

    /** The damaged offsets [first, next) and their place in the file; `next` -1 if nothing valid follows. Immutable. */
    static final class LostRange {
        final long first;
        final long next;
        /** Whether a file is missing or ends early, so that there are no damaged bytes. */
        final boolean isGone;
        private final String text;

        LostRange(long first, long next, String path, int position, int endPosition, String reason) {
            this.first = first;
            this.next = next;
            isGone = position == endPosition;
            text = "offsets " + first + " to " + (next < 0 ? "the end" : String.valueOf(next - 1)) + " (" + path
                + ", bytes " + position + " to " + endPosition + ": " + reason + ")";
        }

        public String toString() {
            return text;
        }
    }
}
