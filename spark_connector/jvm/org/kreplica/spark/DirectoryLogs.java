package org.kreplica.spark;

import java.io.IOException;
import java.util.Collection;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.Set;
import java.util.SortedMap;
import java.util.TreeMap;
import org.kreplica.spark.BatchRecords.BadRecords;
import org.kreplica.spark.BatchRecords.RecordCursor;
import org.kreplica.spark.LogEnd.Bounds;
import org.kreplica.spark.Planner.LogRange;
import org.kreplica.spark.ReaderFactory.ReadSettings;
import org.kreplica.spark.Segment.SegmentWindow;

/**
 * Log directories as the source of a plan: it looks at indexes and published offsets, and at records only to find a
 * time. It opens each log once. One thread.
 */
final class DirectoryLogs implements LogSource {
    private final ReadSettings settings;
    private final PartitionDirectories directories;
    private final Map logs = new HashMap();

    DirectoryLogs(ReadOptions options, PartitionDirectories directories) {
        settings = new ReadSettings(options);
        this.directories = directories;
    }

    public Set partitions() {
        return directories.partitions();
    }

    public String toString() {
        return directories.toString();
    }

    PartitionLog log(TopicPartition at) throws IOException {
        PartitionLog log = (PartitionLog) logs.get(at);
        if (log == null) {
            log = PartitionLog.open(at, directories.directory(at));
            logs.put(at, log);
        }
        return log;
    }

    public SortedMap bounds(Collection partitions) throws IOException {
        SortedMap found = new TreeMap();
        for (Iterator i = partitions.iterator(); i.hasNext();) {
            TopicPartition at = (TopicPartition) i.next();
            found.put(at, LogEnd.of(log(at), settings));
        }
        return found;
    }

    public SortedMap offsetsFor(SortedMap times, SortedMap bounds) throws IOException {
        SortedMap found = new TreeMap();
        for (Iterator i = times.entrySet().iterator(); i.hasNext();) {
            Map.Entry entry = (Map.Entry) i.next();
            TopicPartition at = (TopicPartition) entry.getKey();
            long time = ((Long) entry.getValue()).longValue();
            found.put(at, Long.valueOf(TimestampSearch.offsetFor(log(at), ((Bounds) bounds.get(at)).logEnd, time)));
        }
        return found;
    }

    public String place(TopicPartition at) throws IOException {
        return log(at).directory;
    }

    public long bytes(TopicPartition at, long start, long stop) throws IOException {
        return log(at).bytes(start, stop);
    }

    public void close() {
    }

    /** Returns the start of a batch at or before `wanted` and after `first`, else the end of the batch of `first`. */
    public long boundary(TopicPartition at, long first, long wanted) throws IOException {
        PartitionLog log = log(at);
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
