package org.kreplica.spark;

import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Paths;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import org.kreplica.spark.LogWalk.LostRange;
import org.kreplica.spark.PartitionDirectories.Listing;
import org.kreplica.spark.ReaderFactory.ReadSettings;

/**
 * Finds how far a log may be read.
 *
 * A writer of kreplica's publishes that. A running Kafka records its high watermark every few seconds. If Kafka is
 * not running, the last segment is walked to its last complete batch. For a reader of committed data, the
 * transactions open at that point come from the last producer snapshot and the batches after it.
 */
final class LogEnd {
    private static final int SNAPSHOT_HEADER = 10;
    private static final int SNAPSHOT_ENTRY = 46;
    private static final int FIRST_OFFSET = 38;

    private LogEnd() {
    }

    /** Returns the first offset, the end for a reader, and the log end. Plans use these. */
    static Bounds of(PartitionLog log, ReadSettings settings) throws IOException {
        if (log.standing != null) {
            return published(log.standing, log.logStartOffset, settings);
        }
        String parent = new File(log.directory).getParent();
        if (PartitionLog.isTaken(parent)) {
            return bounds(log, Checkpoints.highWatermark(parent, log.at), settings);
        }
        return bounds(log, lastWhole(log, settings), settings);
    }

    /** Returns the bounds that a writer of kreplica's has published for a log that begins at `start`. */
    static Bounds published(LogStanding standing, long start, ReadSettings settings) {
        long end = settings.committed ? standing.lastStableOffset : standing.highWatermark;
        return new Bounds(start, Math.max(end, start), standing.logEndOffset);
    }

    private static Bounds bounds(PartitionLog log, long found, ReadSettings settings) throws IOException {
        long end = Math.max(found, log.logStartOffset);
        long stable = settings.committed ? Math.min(end, firstUnstable(log, end)) : end;
        return new Bounds(log.logStartOffset, Math.max(stable, log.logStartOffset), end);
    }

    private static long lastWhole(PartitionLog log, ReadSettings settings) throws IOException {
        Segment last = log.segments[log.segments.length - 1];
        LogWalk walk = new LogWalk(log, last.baseOffset, Long.MAX_VALUE);
        try {
            while (walk.next()) {
                continue;
            }
        } finally {
            walk.close();
        }
        long end = walk.nextOffset;
        if (walk.lost.size() > 0) {
            LostRange lost = (LostRange) walk.lost.get(0);
            LostRange rear = (LostRange) walk.lost.get(walk.lost.size() - 1);
            // One more, so that a reader meets the damage.
            end = rear.next < 0 ? rear.first + 1 : end;
            if (settings.committed) {
                // It is unknown which transactions ended after the damage.
                if (!settings.skipDamaged) {
                    throw new ReadException(log.at + ": damaged records, " + lost + "; skipDamaged=true skips them");
                }
                end = lost.first;
            }
        }
        return end;
    }

    /** Returns the offset up to which Kafka flushed the end of its log, for a walk; -1 if not relevant. */
    static long promised(PartitionLog log) throws IOException {
        return log.standing != null ? -1 : Checkpoints.recoveryPoint(new File(log.directory).getParent(), log.at);
    }

    private static long firstUnstable(PartitionLog log, long end) throws IOException {
        Map open = new HashMap();
        long from = newestSnapshot(log, end, open);
        LogWalk walk = new LogWalk(log, from, end);
        try {
            while (walk.next()) {
                BatchHeader batch = walk.header;
                Long producer = Long.valueOf(batch.producerId);
                if (!batch.isTransactional() || batch.lastOffset < from) {
                    continue;
                }
                if (batch.isControl()) {
                    open.remove(producer);
                } else if (!open.containsKey(producer)) {
                    open.put(producer, Long.valueOf(batch.baseOffset));
                }
            }
        } finally {
            walk.close();
        }
        return open.isEmpty() ? end : ((Long) Collections.min(open.values())).longValue();
    }

    /**
     * Returns the offset of the newest complete snapshot and adds its open transactions to `open`; else the log
     * start.
     */
    private static long newestSnapshot(PartitionLog log, long end, Map open) throws IOException {
        String[] names = Listing.names(log.directory);
        for (int i = names.length - 1; i >= 0; i--) {
            if (!names[i].matches("\\d{20}\\.snapshot")) {
                continue;
            }
            long offset = Long.parseLong(names[i].substring(0, 20));
            if (offset <= end && readSnapshot(log.directory, names[i], open)) {
                return offset;
            }
        }
        return log.logStartOffset;
    }

    private static boolean readSnapshot(String directory, String name, Map open) throws IOException {
        ByteBuffer data;
        try {
            data = ByteBuffer.wrap(Files.readAllBytes(Paths.get(directory, new String[] {name})));
        } catch (NoSuchFileException error) {
            return false;
        }
        if (data.capacity() < SNAPSHOT_HEADER || data.getShort(0) != 1) {
            return false;
        }
        java.util.zip.CRC32C checksum = new java.util.zip.CRC32C();
        checksum.update(data.array(), 6, data.capacity() - 6);
        int entries = data.getInt(6);
        boolean whole = (int) checksum.getValue() == data.getInt(2)
            && data.capacity() - SNAPSHOT_HEADER == (long) entries * SNAPSHOT_ENTRY;
        for (int i = 0; whole && i < entries; i++) {
            int at = SNAPSHOT_HEADER + i * SNAPSHOT_ENTRY;
            long first = data.getLong(at + FIRST_OFFSET);
            if (first >= 0) {
                open.put(Long.valueOf(data.getLong(at)), Long.valueOf(first));
            }
        }
        return whole;
    }

    /**
     * The offsets [start, end) of a partition that a reader may see. Records below `logEnd` exist, but may not be known
     * to be committed.
     */
    static final class Bounds {
        final long start;
        final long end;
        final long logEnd;

        Bounds(long start, long end, long logEnd) {
            this.start = start;
            this.end = end;
            this.logEnd = Math.max(end, logEnd);
        }
    }
}
