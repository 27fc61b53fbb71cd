package org.kreplica.spark;

import java.io.IOException;
import java.math.BigInteger;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.SortedMap;
import java.util.SortedSet;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.ReadAllAvailable;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.ReportsSourceMetrics;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeMode;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.types.StructType;
import org.kreplica.spark.LogEnd.Bounds;
import org.kreplica.spark.Planner.LogRange;
import org.kreplica.spark.ReaderFactory.ReadSettings;

/**
 * The reader of a stream: each batch reads from the checkpoint's offsets to the currently published ones.
 *
 * A batch is defined by its two offsets alone, so a batch repeated after a failure reads the same records, with the
 * Python reader as well. In real-time mode a batch has a beginning and a duration; how far its tasks have read is the
 * beginning of the next one. One thread, the stream's.
 */
final class KreplicaStream implements MicroBatchStream, SupportsTriggerAvailableNow, SupportsRealTimeMode,
    ReportsSourceMetrics {
    private final ReadOptions options;
    private final StructType schema;
    /** The end offsets of the query, with Trigger.AvailableNow. */
    private SortedMap target;
    private long lastBatchNs = -1;
    private LogOffsets reported;
    private boolean isRealTime;
    /** The number of tasks that the user was warned about. */
    private int warnedOf;
    private final KnownLogs known;

    KreplicaStream(ReadOptions options, StructType schema) {
        this.options = options;
        this.schema = schema;
        known = new KnownLogs(options);
    }

    public String toString() {
        return "kreplica " + options.where();
    }

    // ---- offsets ---------------------------------------------------------------------------------------------------

    public Offset initialOffset() {
        try {
            Planner planner = known.planner();
            SortedMap bounds = planner.bounds(planner.subscribed(true));
            return new LogOffsets(planner.resolve(options.starting, bounds, true));
        } catch (IOException error) {
            throw ReadException.of(error);
        }
    }

    public Offset deserializeOffset(String json) {
        return LogOffsets.of(json);
    }

    public void prepareForTriggerAvailableNow() {
        target = latest(new TreeMap());
    }

    public ReadLimit getDefaultReadLimit() {
        if (options.maxOffsetsPerTrigger > 0) {
            return ReadLimit.maxRows(options.maxOffsetsPerTrigger);
        }
        if (options.minOffsetsPerTrigger > 0) {
            return ReadLimit.minRows(options.minOffsetsPerTrigger, options.maxTriggerDelayMs);
        }
        return ReadLimit.allAvailable();
    }

    public Offset latestOffset() {
        throw new UnsupportedOperationException("a latest offset without a limit");
    }

    public Offset latestOffset(Offset start, ReadLimit limit) {
        SortedMap begin = ((LogOffsets) start).offsets;
        SortedMap latest = target == null ? latest(begin) : towardTarget(begin);
        if (!(limit instanceof ReadAllAvailable)) {
            SortedMap from = withNew(begin, latest);
            long count = 0;
            for (Iterator i = latest.keySet().iterator(); i.hasNext();) {
                Object at = i.next();
                count += Math.max(0, offset(latest, at) - offset(from, at));
            }
            if (isTooEarly(count)) {
                return start;
            }
            if (options.maxOffsetsPerTrigger > 0) {
                latest = Shares.of(from, latest, options.maxOffsetsPerTrigger);
            }
        }
        lastBatchNs = System.nanoTime();
        return new LogOffsets(latest);
    }

    public Offset reportLatestOffset() {
        reported = new LogOffsets(latest(new TreeMap()));
        return reported;
    }

    private SortedMap latest(SortedMap begin) {
        SortedMap found = new TreeMap();
        try {
            SortedMap bounds = known.bounds();
            for (Iterator i = bounds.entrySet().iterator(); i.hasNext();) {
                Map.Entry entry = (Map.Entry) i.next();
                Bounds each = (Bounds) entry.getValue();
                long reached = begin.containsKey(entry.getKey()) ? offset(begin, entry.getKey()) : 0;
                // Records already read still exist, but may not be known to be committed: a restarted writer
                // has to learn that again.
                found.put(entry.getKey(), Long.valueOf(Math.max(each.end, Math.min(reached, each.logEnd))));
                if (each.logEnd < reached) {
                    ReadException.lost(options.failOnDataLoss, entry.getKey() + ": the log ends at " + each.logEnd
                        + ", but was already read up to " + reached);
                }
            }
        } catch (IOException error) {
            throw ReadException.of(error);
        }
        return found;
    }

    private SortedMap towardTarget(SortedMap begin) {
        SortedMap found = new TreeMap();
        for (Iterator i = target.keySet().iterator(); i.hasNext();) {
            Object at = i.next();
            // A restarted query may already be past the target.
            long reached = begin.containsKey(at) ? offset(begin, at) : 0;
            found.put(at, Long.valueOf(Math.max(offset(target, at), reached)));
        }
        return found;
    }

    /** Returns `begin`, completed with the start offsets of partitions it does not name. */
    private SortedMap withNew(SortedMap begin, SortedMap latest) {
        SortedMap found = new TreeMap(begin);
        try {
            Planner planner = null;
            for (Iterator i = latest.keySet().iterator(); i.hasNext();) {
                TopicPartition at = (TopicPartition) i.next();
                if (!found.containsKey(at)) {
                    planner = planner == null ? known.planner() : planner;
                    found.put(at, Long.valueOf(planner.bounds(at).start));
                }
            }
        } catch (IOException error) {
            throw ReadException.of(error);
        }
        return found;
    }

    private boolean isTooEarly(long count) {
        if (options.minOffsetsPerTrigger < 0 || count >= options.minOffsetsPerTrigger || lastBatchNs < 0
            || target != null) {
            return false;
        }
        return (System.nanoTime() - lastBatchNs) / 1_000_000 < options.maxTriggerDelayMs;
    }

    static long offset(SortedMap offsets, Object at) {
        return ((Long) offsets.get(at)).longValue();
    }

    // ---- a batch ---------------------------------------------------------------------------------------------------

    public InputPartition[] planInputPartitions(Offset start, Offset end) {
        LogRange[] tasks = null;
        for (int attempt = 1; tasks == null; attempt++) {
            try {
                tasks = plan(((LogOffsets) start).offsets, ((LogOffsets) end).offsets);
            } catch (IOException error) {
                Planner.requireAnotherLook(error, attempt);
            }
        }
        return tasks;
    }

    private LogRange[] plan(SortedMap begin, SortedMap stop) throws IOException {
        Planner planner = known.planner();
        SortedSet named = new TreeSet(begin.keySet());
        named.addAll(stop.keySet());
        List ranges = new ArrayList();
        for (Iterator i = named.iterator(); i.hasNext();) {
            TopicPartition at = (TopicPartition) i.next();
            if (!stop.containsKey(at) || !planner.isThere(at)) {
                ReadException.lost(options.failOnDataLoss, at + ": the partition no longer exists");
                continue;
            }
            long from = begin.containsKey(at) ? offset(begin, at) : startOfNew(planner, at);
            if (from < offset(stop, at)) {
                ranges.add(planner.range(at, from, offset(stop, at)));
            }
        }
        return planner.split(ranges);
    }

    private long startOfNew(Planner planner, TopicPartition at) throws IOException {
        long start = planner.bounds(at).start;
        if (start > 0) {
            ReadException.lost(options.failOnDataLoss,
                at + ": new partition, whose records below " + start + " no longer exist");
        }
        return start;
    }

    public PartitionReaderFactory createReaderFactory() {
        ReadSettings settings = new ReadSettings(options);
        return isRealTime ? ReaderFactory.realTime(schema, settings)
            : new ReaderFactory(schema, settings, -1, false);
    }

    // ---- real-time mode --------------------------------------------------------------------------------------------

    public void prepareForRealTimeMode() {
        options.requireRealTime();
        isRealTime = true;
    }

    boolean isRealTime() {
        return isRealTime;
    }

    /** Returns one task for each partition, which reads from `start` on for as long as the batch lasts. */
    public InputPartition[] planInputPartitions(Offset start) {
        SortedMap begin = ((LogOffsets) start).offsets;
        List found = null;
        for (int attempt = 1; found == null; attempt++) {
            try {
                found = follow(begin);
            } catch (IOException error) {
                Planner.requireAnotherLook(error, attempt);
            }
        }
        warnOfCores(found.size());
        if (found.isEmpty()) {
            // A batch without a task would end at once.
            found.add(LogRange.NOTHING);
        }
        return (InputPartition[]) found.toArray(new InputPartition[0]);
    }

    private List follow(SortedMap begin) throws IOException {
        Planner planner = known.planner();
        SortedSet there = planner.subscribed(false);
        SortedSet named = new TreeSet(begin.keySet());
        named.addAll(there);
        List found = new ArrayList();
        for (Iterator i = named.iterator(); i.hasNext();) {
            TopicPartition at = (TopicPartition) i.next();
            if (!there.contains(at)) {
                ReadException.lost(options.failOnDataLoss, at + ": the partition no longer exists");
                continue;
            }
            long from = begin.containsKey(at) ? offset(begin, at) : startOfNew(planner, at);
            found.add(planner.range(at, from, LogRange.NO_END));
        }
        return found;
    }

    /** Warns if tasks would have to wait for the end of others, which is that of the batch. */
    private void warnOfCores(int tasks) {
        int cores = SparkSession.active().sparkContext().defaultParallelism();
        if (tasks > cores && tasks != warnedOf) {
            warnedOf = tasks;
            KreplicaProvider.LOGGER.warn("trigger(realTime=...) reads {} partitions at the same time, each by a core, "
                + "but Spark has {} cores: the last partitions are not read", tasks, cores);
        }
    }

    public Offset mergeOffsets(PartitionOffset[] offsets) {
        SortedMap found = new TreeMap();
        for (int i = 0; i < offsets.length; i++) {
            LogPosition each = (LogPosition) offsets[i];
            if (!each.at.equals(LogRange.NOTHING.at)) {
                found.put(each.at, Long.valueOf(each.offset));
            }
        }
        return new LogOffsets(found);
    }

    // ---- metrics ---------------------------------------------------------------------------------------------------

    public Map metrics(Optional consumed) {
        return lag(reported, consumed);
    }

    /** Returns the lag of a stream behind the latest offsets, under the names that Spark's Kafka source uses. */
    static Map lag(Offset latest, Optional consumed) {
        Map found = new HashMap();
        if (latest == null || !consumed.isPresent()) {
            return found;
        }
        // Before the first batch of a restarted query, use the checkpoint's form.
        SortedMap ends = LogOffsets.of(latest.json()).offsets;
        SortedMap reached = LogOffsets.of(((Offset) consumed.get()).json()).offsets;
        long least = Long.MAX_VALUE;
        long most = 0;
        long sum = 0;
        for (Iterator i = ends.keySet().iterator(); i.hasNext();) {
            Object at = i.next();
            long behind = Math.max(0, offset(ends, at) - (reached.containsKey(at) ? offset(reached, at) : 0));
            least = Math.min(least, behind);
            most = Math.max(most, behind);
            sum += behind;
        }
        if (!ends.isEmpty()) {
            found.put("minOffsetsBehindLatest", String.valueOf(least));
            found.put("maxOffsetsBehindLatest", String.valueOf(most));
            found.put("avgOffsetsBehindLatest", String.valueOf((double) sum / ends.size()));
            found.put("offsetsBehindLatest", String.valueOf(sum));
        }
        return found;
    }

    public void commit(Offset end) {
    }

    public void stop() {
        known.close();
    }
}

/** The progress of a stream in each partition, in the JSON of Spark's Kafka source. Immutable. */
final class LogOffsets extends Offset {
    /** A Long for each TopicPartition. */
    final SortedMap offsets;

    LogOffsets(SortedMap offsets) {
        this.offsets = offsets;
    }

    static LogOffsets of(String json) {
        // A stream may have no partition yet.
        boolean isEmpty = json.trim().equals("{}");
        return new LogOffsets(isEmpty ? new TreeMap() : Json.numbers("checkpoint", json, "offset", 0));
    }

    public String json() {
        return Json.text(offsets);
    }
}

/** Divides a limit among partitions. */
final class Shares {
    private Shares() {
    }

    /** Returns the end offsets of a batch of `limit` records, shared in proportion to what is unread. */
    static SortedMap of(SortedMap begin, SortedMap end, long limit) {
        final Object[] all = end.keySet().toArray();
        long[] sizes = new long[all.length];
        long total = 0;
        for (int i = 0; i < all.length; i++) {
            sizes[i] = Math.max(0, KreplicaStream.offset(end, all[i]) - KreplicaStream.offset(begin, all[i]));
            total += sizes[i];
        }
        if (total <= limit) {
            return end;
        }
        long[] taken = new long[all.length];
        final long[] rests = new long[all.length];
        long left = limit;
        Integer[] order = new Integer[all.length];
        for (int i = 0; i < all.length; i++) {
            BigInteger[] share = BigInteger.valueOf(sizes[i]).multiply(BigInteger.valueOf(limit))
                .divideAndRemainder(BigInteger.valueOf(total));
            taken[i] = share[0].longValue();
            rests[i] = share[1].longValue();
            left -= taken[i];
            order[i] = Integer.valueOf(i);
        }
        // The records that rounding left over go to the partitions it cut most.
        Arrays.sort(order, new Comparator() {
            public int compare(Object one, Object other) {
                return Long.compare(rests[((Integer) other).intValue()], rests[((Integer) one).intValue()]);
            }
        });
        for (int i = 0; i < left; i++) {
            taken[order[i].intValue()]++;
        }
        SortedMap found = new TreeMap();
        for (int i = 0; i < all.length; i++) {
            long stop = KreplicaStream.offset(end, all[i]);
            found.put(all[i], Long.valueOf(sizes[i] > 0 ? KreplicaStream.offset(begin, all[i]) + taken[i] : stop));
        }
        return found;
    }
}
