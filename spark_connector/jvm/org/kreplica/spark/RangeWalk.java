package org.kreplica.spark;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.kreplica.spark.Planner.LogRange;
import org.kreplica.spark.ReaderFactory.ReadSettings;

/**
 * A walk through the batches of a task's range that have records for it.
 *
 * The segments are held open from the start, so they cannot vanish. It skips control batches and, for a reader of
 * committed data, aborted batches. Records that no longer exist are an error, or a warning. One thread.
 */
final class RangeWalk implements RangeBatches {
    private final LogRange range;
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
            walk = new LogWalk(log, start, stop, settings.skipDamaged, failOnDataLoss);
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
        walk = new LogWalk(log, start, stop);
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

    public LogRange range() {
        return range;
    }

    public long start() {
        return start;
    }

    public long stop() {
        return stop;
    }

    /** The number of batches that were read, and their bytes. */
    public long batches() {
        return walk == null ? 0 : walk.batches;
    }

    public long bytes() {
        return walk == null ? 0 : walk.bytes;
    }

    public BatchHeader header() {
        return walk.header;
    }

    public long segment() {
        return walk.segment();
    }

    public ByteBuffer data() {
        return walk.data();
    }

    /** Returns the position in `data` at which the batch begins. */
    public int index() {
        return walk.index();
    }

    /** Sets whether `next` must leave `data` unchanged, as LogWalk.keepData. */
    public void keepData(boolean wanted) {
        if (walk != null) {
            walk.keepData(wanted);
        }
    }

    public void close() throws IOException {
        if (walk != null) {
            walk.close();
            log.close();
        }
    }

    /** Moves to the next batch with records for the reader; false at the end. */
    public boolean next() throws IOException {
        while (start < stop && walk.next()) {
            BatchHeader batch = walk.header;
            boolean admitted = aborted == null || aborted.admits(batch);
            // All records of a batch in append time have the same time; of others only the latest is known.
            boolean isLate = batch.isLogAppendTime() && batch.maxTimestamp > range.toTime;
            boolean isWanted = batch.recordCount > 0 && batch.maxTimestamp >= range.fromTime && !isLate;
            if (admitted && !batch.isControl() && isWanted) {
                return true;
            }
        }
        if (start < stop && wasWhole && walk.isAtEnd && walk.nextOffset < stop) {
            endsEarly(walk.nextOffset);
        }
        return false;
    }

    /** Marks the batch's contents as damaged, after its reader found that they are not records. */
    public void skipRecords(String reason) throws IOException {
        walk.skipRecords(reason);
    }
}

/**
 * The aborted transactions of a range, for readers of committed data.
 *
 * They come from the segments' `.txnindex` files. An entry has 34 bytes: the producer, the first offset, and the
 * offset of the abort marker. So offsets decide, and a damaged marker hides nothing after it. Immutable.
 */
final class AbortedTransactions {
    private static final int ENTRY = 34;

    /** The transactions of each producer id as {first offset, last offset}, sorted by first offset. */
    private final Map byProducer = new HashMap();

    private AbortedTransactions(List entries) {
        for (int i = 0; i < entries.size(); i++) {
            long[] entry = (long[]) entries.get(i);
            Long producerId = Long.valueOf(entry[0]);
            TreeMap known = (TreeMap) byProducer.get(producerId);
            if (known == null) {
                known = new TreeMap();
                byProducer.put(producerId, known);
            }
            known.put(Long.valueOf(entry[1]), Long.valueOf(entry[2]));
        }
    }

    /** Returns the aborted transactions with a record in [start, stop). */
    static AbortedTransactions of(PartitionLog log, long start, long stop) throws IOException {
        List found = new ArrayList();
        boolean complete = false;
        for (int i = log.segmentOf(start); i < log.segments.length && !complete; i++) {
            complete = collect(log.segments[i], start, stop, found);
        }
        return new AbortedTransactions(found);
    }

    /** Adds the segment's transactions to `found`; true if no later segment can add more to [start, stop). */
    private static boolean collect(Segment segment, long start, long stop, List found) throws IOException {
        String path = segment.path.substring(0, segment.path.length() - ".log".length()) + ".txnindex";
        ByteBuffer data;
        try {
            data = ByteBuffer.wrap(Files.readAllBytes(Paths.get(path, new String[0])));
        } catch (NoSuchFileException error) {
            return false;
        }
        // An incomplete last entry was never published by the writer.
        for (int at = 0; at + ENTRY <= data.capacity(); at += ENTRY) {
            long producerId = data.getLong(at + 2);
            long firstOffset = data.getLong(at + 10);
            long lastOffset = data.getLong(at + 18);
            if (data.getShort(at) != 0 || producerId < 0 || firstOffset < 0 || lastOffset <= firstOffset) {
                throw new ReadException(path + ": impossible entry at byte " + at);
            }
            if (lastOffset >= start && firstOffset < stop) {
                found.add(new long[] {producerId, firstOffset, lastOffset});
            }
            if (lastOffset >= start && data.getLong(at + 26) >= stop) {
                return true;
            }
        }
        return false;
    }

    /** Returns whether a reader of committed data sees the batch. */
    boolean admits(BatchHeader batch) {
        if (byProducer.isEmpty() || !batch.isTransactional() || batch.isControl()) {
            return true;
        }
        TreeMap known = (TreeMap) byProducer.get(Long.valueOf(batch.producerId));
        // The producer's last transaction that starts at or before the end of the batch.
        Map.Entry begun = known == null ? null : known.floorEntry(Long.valueOf(batch.lastOffset));
        return begun == null || ((Long) begun.getValue()).longValue() < batch.baseOffset;
    }
}
