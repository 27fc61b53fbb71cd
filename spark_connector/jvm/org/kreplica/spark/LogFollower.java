package org.kreplica.spark;

import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.HashMap;
import org.kreplica.spark.KnownLogs.KnownLog;
import org.kreplica.spark.Planner.LogRange;
import org.kreplica.spark.ReaderFactory.ReadSettings;

/**
 * The batches of a log directory from an offset on, as they become readable.
 *
 * It looks every POLL_MS at what a writer of kreplica's has published; Kafka records that less often, and it takes more
 * to find, so its logs are looked at every KAFKA_POLL_MS. Each stretch of published records is a RangeWalk. One thread.
 */
final class LogFollower implements FollowedBatches {
    private static final long POLL_MS = 2;
    private static final long KAFKA_POLL_MS = 100;
    /** How often a directory that cannot be read is looked at, before that is an error. */
    private static final int LOOKS = 5;

    private final LogRange range;
    private final ReadSettings settings;
    private Deadline deadline = Deadline.NEVER;
    /** Null if the next look has to read everything anew. */
    private KnownLog known;
    private long pollMs = POLL_MS;
    /** The records that are published, but not read; null if there are none. */
    private RangeWalk walk;
    private long nextOffset;
    private boolean isGone;
    private boolean keeps;
    /** The counts of earlier walks. */
    private long batches;
    private long bytes;

    /** A range without a directory has no records. */
    LogFollower(LogRange range, ReadSettings settings) {
        this.range = range;
        this.settings = settings;
        nextOffset = range.start;
        isGone = range.directory == null;
    }

    public void waitUntil(Deadline deadline) {
        this.deadline = deadline;
    }

    public long nextOffset() {
        return nextOffset;
    }

    public LogRange range() {
        return range;
    }

    public long start() {
        return walk == null ? range.start : walk.start();
    }

    public long stop() {
        return walk == null ? range.stop : walk.stop();
    }

    public BatchHeader header() {
        return walk.header();
    }

    public long segment() {
        return walk.segment();
    }

    public ByteBuffer data() {
        return walk.data();
    }

    public int index() {
        return walk.index();
    }

    public void keepData(boolean wanted) {
        keeps = wanted;
        if (walk != null) {
            walk.keepData(wanted);
        }
    }

    public void skipRecords(String reason) throws IOException {
        walk.skipRecords(reason);
    }

    public long batches() {
        return batches + (walk == null ? 0 : walk.batches());
    }

    public long bytes() {
        return bytes + (walk == null ? 0 : walk.bytes());
    }

    public boolean next() throws IOException {
        while (true) {
            if (walk != null && walk.next()) {
                nextOffset = Math.min(walk.header().lastOffset + 1, walk.stop());
                return true;
            }
            finishWalk();
            if (!isGone && foundMore()) {
                continue;
            }
            if (deadline.hasPassed()) {
                return false;
            }
            deadline.pause(isGone ? KAFKA_POLL_MS : pollMs);
        }
    }

    private void finishWalk() throws IOException {
        if (walk != null) {
            nextOffset = walk.stop();
            close();
        }
    }

    public void close() throws IOException {
        if (walk != null) {
            batches += walk.batches();
            bytes += walk.bytes();
            walk.close();
            walk = null;
        }
    }

    /** Begins a walk if there are more records; notes if the partition was deleted. */
    private boolean foundMore() throws IOException {
        try {
            return look();
        } catch (ReadException error) {
            // A directory that is being removed loses its files one by one.
            for (int i = 0; new File(range.directory).isDirectory(); i++) {
                if (i == LOOKS) {
                    throw error;
                }
                Deadline.NEVER.pause(KAFKA_POLL_MS);
            }
        }
        isGone = true;
        ReadException.lost(settings.failOnDataLoss, range.at + ": the partition no longer exists");
        return false;
    }

    private boolean look() throws IOException {
        KnownLog now;
        try {
            now = new KnownLog(range.at, range.directory, known, new HashMap(), settings);
        } catch (IOException error) {
            throw ReadException.of(error);
        }
        known = now.isSettled ? now : null;
        pollMs = now.standing == null ? KAFKA_POLL_MS : POLL_MS;
        if (now.bounds.logEnd < nextOffset) {
            ReadException.lost(settings.failOnDataLoss, range.at + ": the log ends at " + now.bounds.logEnd
                + ", but was already read up to " + nextOffset);
            nextOffset = now.bounds.logEnd;
        }
        if (now.bounds.end <= nextOffset) {
            return false;
        }
        walk = new RangeWalk(range.between(nextOffset, now.bounds.end), settings);
        walk.keepData(keeps);
        return true;
    }
}
