package org.kreplica.spark;

import java.io.IOException;
import java.nio.file.NoSuchFileException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.SortedMap;
import java.util.SortedSet;
import java.util.TreeMap;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.read.HasPartitionKey;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.unsafe.types.UTF8String;
import org.kreplica.spark.BatchRecords.BadRecords;
import org.kreplica.spark.BatchRecords.RecordCursor;
import org.kreplica.spark.LogEnd.Bounds;
import org.kreplica.spark.ReadOptions.Position;
import org.kreplica.spark.Segment.SegmentWindow;

/**
 * Plans a read: partitions from a subscription, offsets from positions, tasks from ranges. It looks at indexes and
 * published offsets, and at records only to find a time. One thread.
 */
final class Planner {
    private static final int LOOKS = 20;

    private final ReadOptions options;
    private final PartitionDirectories directories;
    private final Map logs = new HashMap();

    /** Lists the directories as they are now. */
    Planner(ReadOptions options) throws IOException {
        this(options, PartitionDirectories.find(options.paths));
    }

    Planner(ReadOptions options, PartitionDirectories directories) {
        this.options = options;
        this.directories = directories;
    }

    /**
     * Returns if planning should be retried: retention, a cleaner or a roll removed a file. Else rethrows the error.
     */
    static void requireAnotherLook(IOException error, int attempt) {
        if (!(error instanceof NoSuchFileException) || attempt >= LOOKS) {
            throw ReadException.of(error);
        }
    }

    /** Returns the partitions to read, sorted. Without `allThere` a missing one is left out. */
    SortedSet subscribed(boolean allThere) {
        return options.subscription.of(directories, allThere);
    }

    boolean isThere(TopicPartition at) {
        return directories.partitions().contains(at);
    }

    PartitionLog log(TopicPartition at) throws IOException {
        PartitionLog log = (PartitionLog) logs.get(at);
        if (log == null) {
            log = PartitionLog.open(at, directories.directory(at));
            logs.put(at, log);
        }
        return log;
    }

    Bounds bounds(TopicPartition at) throws IOException {
        return LogEnd.of(log(at), options);
    }

    /** Returns the bounds by partition. */
    SortedMap bounds(Iterable partitions) throws IOException {
        SortedMap found = new TreeMap();
        for (Iterator i = partitions.iterator(); i.hasNext();) {
            TopicPartition at = (TopicPartition) i.next();
            found.put(at, bounds(at));
        }
        return found;
    }

    /** Returns the offset of each partition in `bounds` that `position` stands for. */
    SortedMap resolve(Position position, SortedMap bounds, boolean isStart) throws IOException {
        SortedMap given = position.offsets != null ? position.offsets : position.timestamps;
        if (given != null) {
            requireAll(position, given, bounds);
        }
        SortedMap found = new TreeMap();
        for (Iterator i = bounds.entrySet().iterator(); i.hasNext();) {
            Map.Entry entry = (Map.Entry) i.next();
            TopicPartition at = (TopicPartition) entry.getKey();
            Bounds each = (Bounds) entry.getValue();
            long offset;
            if (position.offsets != null) {
                offset = givenOffset(position, at, each, isStart);
            } else if (position.timestamp >= 0 || position.timestamps != null) {
                long time = position.timestamp >= 0 ? position.timestamp : ((Long) given.get(at)).longValue();
                offset = offsetForTimestamp(position, at, each, time, isStart);
            } else {
                offset = position.otherwise == Position.EARLIEST ? each.start : each.end;
            }
            found.put(at, Long.valueOf(offset));
        }
        return found;
    }

    private long offsetForTimestamp(Position position, TopicPartition at, Bounds bounds, long time, boolean isStart)
        throws IOException {
        long found = TimestampSearch.offsetFor(log(at), bounds.logEnd, time);
        if (found < 0 && isStart && !options.noMatchIsLatest) {
            throw new ReadException(position.option + ": " + at + " has no record at or after " + time
                + "; with startingOffsetsByTimestampStrategy=latest the read begins at the end");
        }
        return found < 0 ? bounds.end : Math.min(found, bounds.end);
    }

    private long givenOffset(Position position, TopicPartition at, Bounds bounds, boolean isStart) {
        long offset = ((Long) position.offsets.get(at)).longValue();
        offset = offset == Position.EARLIEST ? bounds.start : offset == Position.LATEST ? bounds.end : offset;
        if (offset > bounds.end || offset < bounds.start && isStart) {
            ReadException.lost(options.failOnDataLoss, position.option + ": " + at + " has offsets " + bounds.start
                + " to " + bounds.end + ", not " + offset);
        }
        offset = Math.min(offset, bounds.end);
        return isStart ? Math.max(bounds.start, offset) : offset;
    }

    /**
     * Raises ReadException for a partition whose start is after its end. If records before the start were lost and
     * failOnDataLoss is false, that only means nothing to read.
     */
    void checkOrder(SortedMap starts, SortedMap stops, SortedMap bounds) {
        for (Iterator i = starts.entrySet().iterator(); i.hasNext();) {
            Map.Entry entry = (Map.Entry) i.next();
            Object at = entry.getKey();
            long start = ((Long) entry.getValue()).longValue();
            long stop = ((Long) stops.get(at)).longValue();
            if (start > stop && (options.failOnDataLoss || start > ((Bounds) bounds.get(at)).start)) {
                throw new ReadException(options.starting.option + " and " + options.ending.option + ": " + at
                    + " would begin at " + start + " and end at " + stop);
            }
        }
    }

    private static void requireAll(Position position, SortedMap given, SortedMap bounds) {
        for (Iterator i = given.keySet().iterator(); i.hasNext();) {
            Object at = i.next();
            if (!bounds.containsKey(at)) {
                throw new ReadException(position.option + ": " + at + " is not one of the partitions to read");
            }
        }
        for (Iterator i = bounds.keySet().iterator(); i.hasNext();) {
            Object at = i.next();
            if (!given.containsKey(at)) {
                throw new ReadException(position.option + ": " + at + " is missing; name all partitions");
            }
        }
    }

    /** Returns a range of a partition. */
    LogRange range(TopicPartition at, long start, long stop) throws IOException {
        return new LogRange(at, log(at).directory, start, stop, Long.MIN_VALUE, Long.MAX_VALUE);
    }

    /**
     * Splits the ranges into tasks at batch boundaries, without empty ones. A task has at most maxRecordsPerPartition
     * records, and about maxBytesPerPartition at most; at least minPartitions tasks have about equal length.
     */
    LogRange[] split(List ranges) throws IOException {
        List found = new ArrayList();
        long total = 0;
        for (Iterator i = ranges.iterator(); i.hasNext();) {
            LogRange range = (LogRange) i.next();
            if (range.start < range.stop) {
                parts(range, mostRecords(range), found);
                total += range.stop - range.start;
            }
        }
        long wanted = options.minPartitions;
        if (wanted > found.size() && total > 0) {
            List parted = new ArrayList();
            for (Iterator i = found.iterator(); i.hasNext();) {
                LogRange range = (LogRange) i.next();
                long size = range.stop - range.start;
                // In floating point, because the product may exceed a long; one task more or less does no harm.
                long count = Math.max(1, (long) Math.ceil((double) size * wanted / total));
                parts(range, (size + count - 1) / count, parted);
            }
            found = parted;
        }
        return (LogRange[]) found.toArray(new LogRange[0]);
    }

    /** Returns the limit of records in a task, -1 for no limit. */
    private long mostRecords(LogRange range) throws IOException {
        long limit = options.maxRecordsPerPartition;
        if (options.maxBytesPerPartition > 0) {
            long bytes = log(range.at).bytes(range.start, range.stop);
            long tasks = Math.max(1, (bytes + options.maxBytesPerPartition - 1) / options.maxBytesPerPartition);
            long size = (range.stop - range.start + tasks - 1) / tasks;
            limit = limit < 0 ? size : Math.min(limit, size);
        }
        return limit;
    }

    private void parts(LogRange range, long limit, List into) throws IOException {
        long first = range.start;
        while (limit > 0 && range.stop - first > limit) {
            long next = boundary(log(range.at), first, first + limit);
            if (next >= range.stop) {
                break;
            }
            into.add(range.between(first, next));
            first = next;
        }
        into.add(range.between(first, range.stop));
    }

    /** Returns the start of a batch at or before `wanted` and after `first`, else the end of the batch of `first`. */
    private static long boundary(PartitionLog log, long first, long wanted) throws IOException {
        Segment segment = log.segments[log.segmentOf(wanted)];
        BatchHeader header = new BatchHeader();
        SegmentWindow window = new SegmentWindow();
        try {
            window.open(segment);
            int position = segment.hint(wanted, window);
            while (position < segment.size && header.read(window, position, segment.size - position) == null) {
                if (header.lastOffset >= wanted) {
                    long found = Math.min(header.baseOffset, wanted);
                    return found > first ? found : header.lastOffset + 1;
                }
                position += header.size;
            }
            return wanted;
        } finally {
            window.close();
        }
    }

    /** The work of one task: the offsets [start, stop) of the partition in a directory. Immutable. */
    static final class LogRange implements InputPartition, HasPartitionKey {
        private static final long serialVersionUID = 2;
        static final LogRange NOTHING =
            new LogRange(new TopicPartition("", 0), null, 0, 0, Long.MIN_VALUE, Long.MAX_VALUE);

        final TopicPartition at;
        final String directory;
        final long start;
        final long stop;
        /** The earliest and the latest wanted time (ms since 1970). */
        final long fromTime;
        final long toTime;

        LogRange(TopicPartition at, String directory, long start, long stop, long fromTime, long toTime) {
            this.at = at;
            this.directory = directory;
            this.start = start;
            this.stop = stop;
            this.fromTime = fromTime;
            this.toTime = toTime;
        }

        LogRange between(long first, long end) {
            return new LogRange(at, directory, first, end, fromTime, toTime);
        }

        public InternalRow partitionKey() {
            Object[] values = {UTF8String.fromString(at.topic), Integer.valueOf(at.partition)};
            return new GenericInternalRow(values);
        }
    }

    /** Searches a log by time, with the time indexes. */
    static final class TimestampSearch {
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
            LogRange range = new LogRange(log.at, log.directory, first, end, timestamp, Long.MAX_VALUE);
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
}
