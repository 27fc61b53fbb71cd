package org.kreplica.spark;

import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.HashMap;
import org.kreplica.spark.KnownLogs.KnownLog;
import org.kreplica.spark.LogStanding.Watch;
import org.kreplica.spark.Planner.LogRange;
import org.kreplica.spark.ReaderFactory.ReadSettings;

/**
 * The batches of a log directory from an offset on, as they become readable.
 *
 * A log is looked at every LOOK_MS, and one of kreplica's as soon as its writer publishes something, which is checked
 * every LEAST_POLL_MS; after a pause less often, since waking up a thread takes time. Each stretch of published records
 * is a RangeWalk. One thread.
 */
final class LogFollower implements FollowedBatches {
    private static final long LEAST_POLL_MS = 1;
    private static final long MOST_POLL_MS = 10;
    /** The share of the time since the last records after which to check again. */
    private static final long SHARE = 32;
    private static final long LOOK_MS = 100;
    /** How often a directory that cannot be read is looked at, before that is an error. */
    private static final int LOOKS = 5;

    private final LogRange range;
    private final ReadSettings settings;
    private Deadline deadline = Deadline.NEVER;
    /** Null if the next look has to read everything anew. */
    private KnownLog known;
    /** Null for a log of Kafka's. */
    private Watch watch;
    /** What the watch showed before the last look. */
    private long sequence;
    /** When records were last found. */
    private long foundNs = System.nanoTime();
    /** The records that are published, but not read; null if all are read. */
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
            awaitLook();
        }
    }

    private void awaitLook() throws IOException {
        if (isGone || watch == null) {
            deadline.pause(LOOK_MS);
            return;
        }
        Deadline look = Deadline.in(deadline.leftMs(LOOK_MS));
        while (watch.sequence() == sequence && !look.hasPassed()) {
            long idleMs = (System.nanoTime() - foundNs) / 1_000_000;
            look.pause(Math.max(LEAST_POLL_MS, Math.min(MOST_POLL_MS, idleMs / SHARE)));
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
                Deadline.NEVER.pause(LOOK_MS);
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
            watch = now.standing == null ? null : Watch.of(range.directory, watch);
        } catch (IOException error) {
            throw ReadException.of(error);
        }
        known = now.isSettled ? now : null;
        sequence = now.standing == null ? 0 : now.standing.sequence;
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
        foundNs = System.nanoTime();
        return true;
    }
}
