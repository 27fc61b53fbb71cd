package org.kreplica.spark;

import java.io.File;
import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.nio.channels.OverlappingFileLockException;
import java.nio.file.NoSuchFileException;
import java.nio.file.OpenOption;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;
import java.util.Arrays;
import java.util.Iterator;
import java.util.TreeSet;
import org.kreplica.spark.PartitionDirectories.Listing;
import org.kreplica.spark.ReadException.NotForThisReader;
import org.kreplica.spark.Segment.SegmentWindow;

/**
 * A snapshot of a partition's log: its segments, and the offsets between which it may be read.
 *
 * The writer's published state bounds a log of kreplica's, whether the writer is live or not; `LogEnd` bounds one of
 * Kafka's. Logs with known damage, or that a crash left unfinished, go to the Python reader by a NotForThisReader.
 * One thread owns the files it holds.
 */
final class PartitionLog {
    private static final int ATTEMPTS = 40;
    private static final long PAUSE_MS = 25;
    private static final int HELD = 256;
    /** As in kreplica.log.careful_append: with a larger gap a follower begins a new segment. */
    private static final long LARGEST_GAP = 1L << 30;
    /** Kafka's marker of a clean shutdown. */
    private static final String CLOSED = ".kafka_cleanshutdown";

    final TopicPartition at;
    final String directory;
    final Segment[] segments;
    /** Null for a Kafka log. */
    final LogStanding standing;
    final long logStartOffset;
    /** Whether segments at the log's start are missing without retention, which would first advance the start. */
    final boolean lacksStart;
    /** Segments below this offset are held open. */
    private final long stop;
    /** Whether gaps between segments come from a cleaner; null until checked. */
    private Boolean isCompacted;

    private PartitionLog(TopicPartition at, String directory, LogStanding standing, Segment[] segments, long stop)
        throws IOException {
        this.at = at;
        this.directory = directory;
        this.standing = standing;
        this.segments = segments;
        this.stop = stop;
        long begin = segments[0].baseOffset;
        long noted = standing == null ? notedStart(at, directory, begin) : standing.logStartOffset;
        lacksStart = noted < begin && (standing == null || begin - noted <= LARGEST_GAP);
        logStartOffset = lacksStart ? noted : Math.max(noted, begin);
    }

    /** Returns where a Kafka log begins if its first segment is at `begin`. As in kreplica.log.log_loader. */
    private static long notedStart(TopicPartition at, String directory, long begin) throws IOException {
        String parent = new File(directory).getParent();
        long noted = Checkpoints.logStartOffset(parent, at);
        if (isTaken(parent)) {
            // Kafka deletes segments first, and records the new start later.
            return Math.max(noted, begin);
        }
        if (noted < 0 && (!new File(parent, "meta.properties").exists() || new File(parent, CLOSED).exists())) {
            noted = Checkpoints.firstEpochStart(directory);
        }
        return noted < 0 ? begin : noted;
    }

    /** Opens the log as it is now. Raises NotForThisReader, and ReadException if there is no log. */
    static PartitionLog open(TopicPartition at, String directory) throws IOException {
        return open(at, directory, 0, 0);
    }

    /**
     * Opens the log and the files of [start, stop), so that they cannot vanish before they are read. It holds HELD
     * files at a time, because descriptors are scarce and retention removes the oldest first. The caller closes it.
     */
    static PartitionLog open(TopicPartition at, String directory, long start, long stop) throws IOException {
        IOException last = null;
        for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
            try {
                return attempt(at, directory, start, stop);
            } catch (NoSuchFileException error) {
                // Retention, a cleaner or a roll changed a file after it was listed and before it was opened.
                last = error;
            }
            pause();
        }
        throw new NotForThisReader(ReadException.of(last).getMessage());
    }

    /** Returns the error for files from before and after a replacement of segments, which do not fit together. */
    private static NoSuchFileException replaced(String directory) {
        return new NoSuchFileException(directory, null, "segments are being replaced");
    }

    private static PartitionLog attempt(TopicPartition at, String directory, long start, long stop)
        throws IOException {
        LogStanding standing = LogStanding.read(directory);
        String[] names = names(directory);
        requireSound(directory, names, standing);
        TreeSet bases = bases(directory, names, standing);
        if (bases.isEmpty()) {
            throw new ReadException(directory + ": has no segments of a log");
        }
        PartitionLog log = new PartitionLog(at, directory, standing, segments(directory, bases, standing), stop);
        boolean isOpen = false;
        try {
            int known = standing == null || standing.segments == 0 ? log.segments.length : standing.segments;
            // The walk finds the place of the missing one.
            if (log.segments.length > known) {
                throw new NotForThisReader(directory + ": has " + log.segments.length + " segments, but "
                        + known + " were closed");
            }
            log.hold(log.segmentOf(start));
            LogStanding now = standing == null ? null : LogStanding.read(directory);
            boolean same = standing == null || now != null && now.cuts == standing.cuts
                && (now.logStartOffset == standing.logStartOffset || !log.lacksStart);
            // A file renamed while the directory was listed may be missing under both names.
            if (!same || !bases(directory, names(directory), standing).equals(bases)) {
                throw replaced(directory);
            }
            isOpen = true;
        } finally {
            if (!isOpen) {
                log.close();
            }
        }
        return log;
    }

    private static String[] names(String directory) throws IOException {
        try {
            return Listing.names(directory);
        } catch (NoSuchFileException error) {
            throw new ReadException(directory + ": there is no such directory", error);
        }
    }

    private static void requireSound(String directory, String[] names, LogStanding standing) throws IOException {
        for (int i = 0; i < names.length; i++) {
            if (names[i].equals("kreplica.damage.json") || names[i].endsWith(".rot.json")) {
                throw new NotForThisReader(directory + ": has known damage");
            }
        }
        if (standing != null) {
            if (!standing.isLive()) {
                throw new NotForThisReader(directory + ": was not closed properly before the machine last started");
            }
            return;
        }
        for (int i = 0; i < names.length; i++) {
            if (names[i].endsWith(".cleaned") && !isTaken(new File(directory).getParent())) {
                throw new NotForThisReader(directory + ": has an unfinished replacement of segments");
            }
        }
    }

    /** Returns whether a running node, Kafka's or kreplica's, has locked the log directory. */
    static boolean isTaken(String parent) throws IOException {
        FileChannel channel;
        try {
            channel = FileChannel.open(Paths.get(parent, new String[] {".lock"}),
                new OpenOption[] {StandardOpenOption.READ});
        } catch (NoSuchFileException error) {
            return false;
        }
        try {
            // Take a shared lock for a moment; there is no other way to test it from here.
            FileLock lock = channel.tryLock(0, Long.MAX_VALUE, true);
            if (lock != null) {
                lock.release();
            }
            return lock == null;
        } catch (OverlappingFileLockException error) {
            return true;
        } finally {
            channel.close();
        }
    }

    /** Returns the base offsets of the segments up to the published end. */
    private static TreeSet bases(String directory, String[] names, LogStanding standing) throws IOException {
        TreeSet bases = new TreeSet();
        for (int i = 0; i < names.length; i++) {
            if (names[i].endsWith(".swap")) {
                throw replaced(directory);
            }
            if (names[i].matches("\\d{20}\\.log")) {
                bases.add(Long.valueOf(names[i].substring(0, 20)));
            }
        }
        if (standing != null) {
            bases.tailSet(Long.valueOf(standing.activeBaseOffset), false).clear();
        }
        return bases;
    }

    private static Segment[] segments(String directory, TreeSet bases, LogStanding standing) throws IOException {
        Segment[] found = new Segment[bases.size()];
        int number = 0;
        for (Iterator i = bases.iterator(); i.hasNext();) {
            long base = ((Long) i.next()).longValue();
            boolean active = standing != null && base == standing.activeBaseOffset;
            found[number++] = new Segment(directory, base, active ? standing.validBytes : -1);
        }
        if (standing != null && found[found.length - 1].baseOffset != standing.activeBaseOffset) {
            throw new NoSuchFileException(directory, null, "the active segment is missing");
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

    /** Returns the number of the segment that contains an offset; the first one for lower offsets. */
    int segmentOf(long offset) {
        long[] bases = new long[segments.length];
        for (int i = 0; i < bases.length; i++) {
            bases[i] = segments[i].baseOffset;
        }
        int found = Arrays.binarySearch(bases, offset);
        return Math.max(0, found >= 0 ? found : -found - 2);
    }

    /** Estimates the bytes of the records in [start, stop): of a segment that the range cuts, a share. */
    long bytes(long start, long stop) {
        double found = 0;
        for (int i = segmentOf(start); i < segments.length && segments[i].baseOffset < stop; i++) {
            long first = segments[i].baseOffset;
            long end = i + 1 < segments.length ? segments[i + 1].baseOffset
                : standing != null ? Math.max(standing.logEndOffset, first + 1) : Math.max(stop, first + 1);
            long wanted = Math.max(0, Math.min(stop, end) - Math.max(start, first));
            found += (double) segments[i].size * wanted / Math.max(1, end - first);
        }
        return (long) found;
    }

    /** Opens the files to be read, from this segment on. */
    void hold(int number) throws IOException {
        int end = Math.min(segments.length, number + HELD);
        for (int i = number; i < end && segments[i].baseOffset < stop; i++) {
            segments[i].hold();
        }
    }

    /** Closes the files. */
    void close() throws IOException {
        for (int i = 0; i < segments.length; i++) {
            segments[i].release();
        }
    }

    /**
     * Returns whether the offsets from `end`, the end of a segment, to `following`, the start of the next, are lost.
     * In a log written only by kreplica, segments are contiguous, compacted or not, except for what a follower's
     * leader left out. In a Kafka log compaction may have removed them, if there are signs of compaction.
     */
    boolean isLost(Segment segment, long end, long following) throws IOException {
        boolean isGap = end < following && following - end <= LARGEST_GAP && following > logStartOffset;
        return isGap && (standing != null && !standing.hasGaps || !isCompaction(segment));
    }

    private boolean isCompaction(Segment segment) throws IOException {
        Boolean held = segment.heldRecords();
        return segment.size > 0 || held == null ? wasCompacted() : !held.booleanValue();
    }

    /** Looks for signs of compaction (see missing_segments). */
    private boolean wasCompacted() throws IOException {
        if (isCompacted == null) {
            boolean found = Checkpoints.wasCleaned(new File(directory).getParent(), at);
            for (int i = 0; !found && i < segments.length; i++) {
                found = Boolean.FALSE.equals(segments[i].heldRecords()) || lacksOffsets(segments[i]);
            }
            isCompacted = Boolean.valueOf(found);
        }
        return isCompacted.booleanValue();
    }

    /** Returns whether offsets are missing at the begin, within a batch or between two; producers leave out none. */
    private boolean lacksOffsets(Segment segment) throws IOException {
        SegmentWindow window = new SegmentWindow();
        try {
            // Use a separate window, so that the walk's files stay open.
            window.open(new Segment(directory, segment.baseOffset, segment.size));
            return lacksOffsets(window, segment);
        } catch (NoSuchFileException error) {
            return false;
        } finally {
            window.close();
        }
    }

    private static boolean lacksOffsets(SegmentWindow window, Segment segment) throws IOException {
        BatchHeader header = new BatchHeader();
        long expected = segment.baseOffset;
        for (int at = 0; header.read(window, at, segment.size - at) == null; at += header.size) {
            if (header.recordCount <= header.lastOffset - header.baseOffset || header.baseOffset > expected) {
                return true;
            }
            expected = header.lastOffset + 1;
        }
        return false;
    }
}
