package org.kreplica.spark;

import java.io.IOException;
import java.nio.file.NoSuchFileException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
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
import org.kreplica.spark.LogEnd.Bounds;
import org.kreplica.spark.ReadOptions.Position;

/** Plans a read: partitions from a subscription, offsets from positions, tasks from ranges. One thread. */
final class Planner {
    private static final int LOOKS = 20;

    final LogSource source;
    private final ReadOptions options;

    /** A planner of a batch, which looks at the source as it is now. */
    Planner(ReadOptions options) throws IOException {
        this(options, options.servers != null ? (LogSource) new ClusterLogs(options, new ClusterClient(options.servers))
            : new DirectoryLogs(options, PartitionDirectories.find(options.paths)));
    }

    Planner(ReadOptions options, LogSource source) {
        this.options = options;
        this.source = source;
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
    SortedSet subscribed(boolean allThere) throws IOException {
        return options.subscription.of(source, allThere);
    }

    boolean isThere(TopicPartition at) throws IOException {
        return source.partitions().contains(at);
    }

    Bounds bounds(TopicPartition at) throws IOException {
        return (Bounds) bounds(Collections.singleton(at)).get(at);
    }

    /** Returns the Bounds by partition. */
    SortedMap bounds(Collection partitions) throws IOException {
        return source.bounds(partitions);
    }

    /** Returns the offset of each partition in `bounds` that `position` stands for. */
    SortedMap resolve(Position position, SortedMap bounds, boolean isStart) throws IOException {
        SortedMap given = position.offsets != null ? position.offsets : position.timestamps;
        if (given != null) {
            requireAll(position, given, bounds);
        }
        SortedMap byTime = position.timestamp >= 0 || position.timestamps != null ? byTime(position, bounds) : null;
        SortedMap found = new TreeMap();
        for (Iterator i = bounds.entrySet().iterator(); i.hasNext();) {
            Map.Entry entry = (Map.Entry) i.next();
            TopicPartition at = (TopicPartition) entry.getKey();
            Bounds each = (Bounds) entry.getValue();
            long offset;
            if (position.offsets != null) {
                offset = givenOffset(position, at, each, isStart);
            } else if (byTime != null) {
                offset = ((Long) byTime.get(at)).longValue();
                if (offset < 0 && isStart && !options.noMatchIsLatest) {
                    throw new ReadException(position.option + ": " + at + " has no record at or after "
                        + position.time(at)
                        + "; with startingOffsetsByTimestampStrategy=latest the read begins at the end");
                }
                offset = offset < 0 ? each.end : Math.min(offset, each.end);
            } else {
                offset = position.otherwise == Position.EARLIEST ? each.start : each.end;
            }
            found.put(at, Long.valueOf(offset));
        }
        return found;
    }

    /** Returns the first offset with this time or a later one by partition, without any for Long.MIN_VALUE. */
    SortedMap offsetsFrom(long time, SortedMap bounds) throws IOException {
        SortedMap times = new TreeMap();
        for (Iterator i = bounds.keySet().iterator(); time > Long.MIN_VALUE && i.hasNext();) {
            times.put(i.next(), Long.valueOf(time));
        }
        return times.isEmpty() ? times : source.offsetsFor(times, bounds);
    }

    private SortedMap byTime(Position position, SortedMap bounds) throws IOException {
        SortedMap times = new TreeMap();
        for (Iterator i = bounds.keySet().iterator(); i.hasNext();) {
            TopicPartition at = (TopicPartition) i.next();
            times.put(at, Long.valueOf(position.time(at)));
        }
        return source.offsetsFor(times, bounds);
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
        return new LogRange(at, source.place(at), start, stop, Long.MIN_VALUE, Long.MAX_VALUE);
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
            long bytes = source.bytes(range.at, range.start, range.stop);
            long tasks = Math.max(1, (bytes + options.maxBytesPerPartition - 1) / options.maxBytesPerPartition);
            long size = (range.stop - range.start + tasks - 1) / tasks;
            limit = limit < 0 ? size : Math.min(limit, size);
        }
        return limit;
    }

    private void parts(LogRange range, long limit, List into) throws IOException {
        long first = range.start;
        while (limit > 0 && range.stop - first > limit) {
            long next = source.boundary(range.at, first, first + limit);
            if (next >= range.stop) {
                break;
            }
            into.add(range.between(first, next));
            first = next;
        }
        into.add(range.between(first, range.stop));
    }

    /**
     * The work of one task: the offsets [start, stop) of a partition. `directory`: the log's, empty for a cluster, null
     * for a task without records. Immutable.
     */
    static final class LogRange implements InputPartition, HasPartitionKey {
        private static final long serialVersionUID = 2;
        /** The end of a range whose records are read as they are written. */
        static final long NO_END = Long.MAX_VALUE;
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
}
