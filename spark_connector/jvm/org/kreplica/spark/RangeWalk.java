package org.kreplica.spark;

import java.io.IOException;
import java.nio.ByteBuffer;

/**
 * A walk through the batches of a task's range that have records for it.
 *
 * The segments are held open from the start, so they cannot vanish. It skips control batches and, for a reader of
 * committed data, aborted batches. Records that no longer exist are an error, or a warning. One thread.
 */
final class RangeWalk {
    final LogRange range;
    private final boolean failOnDataLoss;
    private final PartitionLog log;
    private final LogWalk walk;
    private final AbortedTransactions aborted;
    private final long stop;
    private final long start;
    private final boolean wasWhole;

    RangeWalk(LogRange range, ReadSettings settings) throws IOException {
        this.range = range;
        failOnDataLoss = settings.failOnDataLoss;
        if (range.directory == null) {
            start = 0;
            stop = 0;
            wasWhole = false;
            aborted = null;
            log = null;
            walk = null;
            return;
        }
        log = PartitionLog.open(range.at, range.directory, range.start, range.stop);
        boolean isMade = false;
        try {
            start = first(log);
            stop = Math.max(start, end(log));
            wasWhole = stop == range.stop;
            aborted = settings.committed ? AbortedTransactions.of(log, start, stop) : null;
            walk = new LogWalk(log, start, stop, settings.skipDamaged, LogEnd.promised(log));
            isMade = true;
        } finally {
            if (!isMade) {
                log.close();
            }
        }
    }

    /** For a search by time: skips damage, and ignores transactions. */
    RangeWalk(PartitionLog log, LogRange range) throws IOException {
        this.range = range;
        this.log = log;
        failOnDataLoss = false;
        start = range.start;
        stop = range.stop;
        wasWhole = false;
        aborted = null;
        walk = new LogWalk(log, start, stop, true, LogEnd.promised(log));
    }

    private long first(PartitionLog log) {
        if (range.start >= log.logStartOffset) {
            return range.start;
        }
        long first = Math.min(log.logStartOffset, range.stop);
        ReadException.lost(failOnDataLoss,
            range.at + ": offsets " + range.start + " to " + (first - 1) + " no longer exist");
        return first;
    }

    private long end(PartitionLog log) {
        if (log.standing == null || range.stop <= log.standing.logEndOffset) {
            return range.stop;
        }
        long end = log.standing.logEndOffset;
        endsEarly(end);
        return end;
    }

    private void endsEarly(long end) {
        ReadException.lost(failOnDataLoss,
            range.at + ": the log ends at " + end + ", but was already read up to " + range.stop);
    }

    long start() {
        return start;
    }

    long stop() {
        return stop;
    }

    BatchHeader header() {
        return walk.header;
    }

    ByteBuffer data() {
        return walk.data();
    }

    /** Returns the position in `data` at which the batch begins. */
    int index() {
        return walk.index();
    }

    /** Sets whether `next` must leave `data` unchanged, as LogWalk.keepData. */
    void keepData(boolean wanted) {
        if (walk != null) {
            walk.keepData(wanted);
        }
    }

    void close() throws IOException {
        if (walk != null) {
            walk.close();
            log.close();
        }
    }

    /** Moves to the next batch with records for the reader; false at the end. */
    boolean next() throws IOException {
        while (start < stop && walk.next()) {
            BatchHeader batch = walk.header;
            boolean admitted = aborted == null || aborted.admits(batch);
            if (admitted && !batch.isControl() && batch.recordCount > 0 && batch.maxTimestamp >= range.fromTime) {
                return true;
            }
        }
        if (start < stop && wasWhole && walk.isAtEnd && walk.nextOffset < stop) {
            endsEarly(walk.nextOffset);
        }
        return false;
    }

    /** Marks the batch's contents as damaged, after its reader found that they are not records. */
    void skipRecords(String reason) throws IOException {
        walk.skipRecords(reason);
    }
}
