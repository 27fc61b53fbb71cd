package org.kreplica.spark;

import java.io.IOException;

/** Searches a log by time, with the time indexes. */
final class TimestampSearch {
    private TimestampSearch() {
    }

    /** Returns the first offset below `end` with this time (ms since 1970) or a later one, else -1. */
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
        // The times of damaged records are unknown; the answer is the first readable record.
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
