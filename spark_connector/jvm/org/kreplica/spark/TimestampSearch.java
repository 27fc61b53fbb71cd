package org.kreplica.spark;

import java.io.IOException;

/** The search by time, through the time indexes. */
final class TimestampSearch {
    private TimestampSearch() {
    }

    /** The first offset below `end` whose record has this time (ms since 1970) or a later one; -1: there is none. */
    static long offsetFor(PartitionLog log, long end, long timestamp) throws IOException {
        for (int i = log.segmentOf(log.logStartOffset); i < log.segments.length; i++) {
            Segment segment = log.segments[i];
            if (segment.baseOffset >= end) {
                return -1;
            }
            long next = i + 1 < log.segments.length ? log.segments[i + 1].baseOffset : end;
            long first = Math.max(log.logStartOffset, segment.offsetBefore(timestamp));
            long found = first < next ? search(log, first, Math.min(next, end), timestamp) : -1;
            if (found >= 0) {
                return found;
            }
        }
        return -1;
    }

    private static long search(PartitionLog log, long first, long end, long timestamp) throws IOException {
        LogRange range = new LogRange(log.at, log.directory, first, end, timestamp);
        // What rotted cannot be read whatever its time was; the answer is the first record that can.
        RangeWalk walk = new RangeWalk(log, range);
        try {
            return search(walk, first, end, timestamp);
        } finally {
            walk.close();
        }
    }

    private static long search(RangeWalk walk, long first, long end, long timestamp) throws IOException {
        BatchRecords records = new BatchRecords(walk, true);
        while (records.nextBatch()) {
            RecordCursor cursor = records.cursor;
            try {
                while (cursor.left > 0) {
                    cursor.next();
                    if (cursor.timestamp >= timestamp && cursor.offset >= first && cursor.offset < end) {
                        return cursor.offset;
                    }
                }
            } catch (BadRecords error) {
                walk.skipRecords(error.getMessage());
            }
            records.reuse();
        }
        return -1;
    }
}
