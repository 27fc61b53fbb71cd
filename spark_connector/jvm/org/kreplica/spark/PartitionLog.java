package org.kreplica.spark;

import java.io.File;
import java.io.IOException;
import java.nio.file.NoSuchFileException;
import java.util.Arrays;
import java.util.TreeSet;

/**
 * One look at the log of a partition: its segments, and the offsets between which it may be read.
 *
 * A log of kreplica's is bounded by what its writer has published, live or not. One of Kafka's that nobody writes goes
 * up to its last whole batch, which only a `LogEnd` finds. Whatever else there is (a Kafka that runs, what a crash has
 * left, known damage) is left to the Python reader, by a NotForThisReader. Immutable once it is open.
 */
final class PartitionLog {
    private static final int ATTEMPTS = 40;
    private static final long PAUSE_MS = 25;

    final TopicPartition at;
    final String directory;
    final Segment[] segments;
    /** Null for a log of Kafka's. */
    final LogStanding standing;
    final long logStartOffset;

    private PartitionLog(TopicPartition at, String directory, LogStanding standing, Segment[] segments)
        throws IOException {
        this.at = at;
        this.directory = directory;
        this.standing = standing;
        this.segments = segments;
        long noted = standing == null
            ? Checkpoints.logStartOffset(new File(directory).getParent(), at) : standing.logStartOffset;
        logStartOffset = Math.max(noted, segments[0].baseOffset);
    }

    /** The log as it stands now. Raises NotForThisReader, ReadException where there is none. */
    static PartitionLog open(TopicPartition at, String directory) throws IOException {
        NoSuchFileException gone = null;
        for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
            try {
                PartitionLog found = attempt(at, directory, attempt == ATTEMPTS - 1);
                if (found != null) {
                    return found;
                }
            } catch (NoSuchFileException error) {
                // Retention, a cleaner or a roll changed a file between the look at it and its opening.
                gone = error;
            }
            pause();
        }
        throw gone == null ? new IOException(directory + ": files are replaced all the time") : gone;
    }

    private static PartitionLog attempt(TopicPartition at, String directory, boolean last) throws IOException {
        LogStanding standing = LogStanding.read(directory);
        String[] names = new File(directory).list();
        if (names == null) {
            throw new ReadException(directory + ": there is no such directory");
        }
        requireSound(directory, names, standing);
        Segment[] segments = segments(directory, names, standing);
        if (segments == null) {
            if (last) {
                throw new NotForThisReader(directory + ": segments are being replaced");
            }
            return null;
        }
        if (standing != null && standing.segments != 0 && standing.segments != segments.length) {
            throw new NotForThisReader(directory + ": a segment is missing");
        }
        LogStanding now = standing == null ? null : LogStanding.read(directory);
        // Files of before and after a replacement do not fit together.
        boolean same = standing == null || now != null && now.cuts == standing.cuts;
        return same ? new PartitionLog(at, directory, standing, segments) : null;
    }

    private static void requireSound(String directory, String[] names, LogStanding standing) throws IOException {
        for (int i = 0; i < names.length; i++) {
            if (names[i].equals("kreplica.damage.json") || names[i].endsWith(".rot.json")) {
                throw new NotForThisReader(directory + ": has known damage");
            }
        }
        if (standing != null) {
            if (!standing.isLive()) {
                throw new NotForThisReader(directory + ": was not closed in order before the machine's last start");
            }
            return;
        }
        File parent = new File(directory).getParentFile();
        if (new File(parent, ".lock").exists() && !new File(parent, ".kafka_cleanshutdown").exists()) {
            throw new NotForThisReader(directory + ": a Kafka may be writing there");
        }
    }

    /** The segments of [log start, published end); null while some are being replaced. */
    private static Segment[] segments(String directory, String[] names, LogStanding standing) throws IOException {
        TreeSet bases = new TreeSet();
        for (int i = 0; i < names.length; i++) {
            if (names[i].endsWith(".swap") || standing == null && names[i].endsWith(".cleaned")) {
                return null;
            }
            if (names[i].matches("\\d{20}\\.log")) {
                bases.add(Long.valueOf(names[i].substring(0, 20)));
            }
        }
        if (standing != null) {
            bases.tailSet(Long.valueOf(standing.activeBaseOffset), false).clear();
        }
        if (bases.isEmpty()) {
            throw new ReadException(directory + ": no segment of a log in this directory");
        }
        Object[] sorted = bases.toArray();
        Segment[] found = new Segment[sorted.length];
        for (int i = 0; i < sorted.length; i++) {
            long base = ((Long) sorted[i]).longValue();
            boolean active = standing != null && base == standing.activeBaseOffset;
            found[i] = new Segment(directory, base, active ? standing.validBytes : -1);
        }
        if (standing != null && found[found.length - 1].baseOffset != standing.activeBaseOffset) {
            throw new NoSuchFileException(directory + ": the active segment");
        }
        return found;
    }

    private static void pause() throws IOException {
        try {
            Thread.sleep(PAUSE_MS);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new java.io.InterruptedIOException();
        }
    }

    /** The number of the segment that an offset belongs to, the first one below all of them. */
    int segmentOf(long offset) {
        long[] bases = new long[segments.length];
        for (int i = 0; i < bases.length; i++) {
            bases[i] = segments[i].baseOffset;
        }
        int found = Arrays.binarySearch(bases, offset);
        return Math.max(0, found >= 0 ? found : -found - 2);
    }

    /** Map all that holds [start, stop), so that nothing takes it away before it is read. */
    void map(long start, long stop) throws IOException {
        for (int i = segmentOf(start); i < segments.length && segments[i].baseOffset < stop; i++) {
            segments[i].map();
        }
    }

    /** Whether a segment begins where the one before it ends. */
    boolean isGapless() {
        return standing != null && !standing.hasGaps;
    }
}
