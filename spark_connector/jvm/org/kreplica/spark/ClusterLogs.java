package org.kreplica.spark;

import java.io.IOException;
import java.util.Collection;
import java.util.Iterator;
import java.util.Map;
import java.util.Set;
import java.util.SortedMap;
import java.util.TreeMap;
import org.kreplica.spark.LogEnd.Bounds;
import org.kreplica.spark.ReadOptions.Position;

/** The partitions of a cluster as the source of a plan: one request to each leader for all offsets. One thread. */
final class ClusterLogs implements LogSource {
    /** The size of a record whose size is unknown, to estimate that of a read. */
    private static final long RECORD_BYTES = 1024;

    private final ReadOptions options;
    private final ClusterClient client;
    private Set partitions;

    ClusterLogs(ReadOptions options, ClusterClient client) {
        this.options = options;
        this.client = client;
    }

    public String toString() {
        return client.toString();
    }

    public Set partitions() throws IOException {
        if (partitions == null) {
            partitions = client.leaders().keySet();
        }
        return partitions;
    }

    public SortedMap bounds(Collection wanted) throws IOException {
        try {
            return allBounds(wanted);
        } catch (ClusterError error) {
            if (error.code != ClusterError.UNKNOWN_TOPIC_OR_PARTITION) {
                throw error;
            }
        }
        SortedMap there = new TreeMap(client.leaders());
        partitions = there.keySet();
        SortedMap left = new TreeMap();
        for (Iterator i = wanted.iterator(); i.hasNext();) {
            TopicPartition at = (TopicPartition) i.next();
            if (there.containsKey(at)) {
                left.put(at, at);
            } else {
                ReadException.lost(options.failOnDataLoss, at + ": the partition no longer exists");
            }
        }
        return allBounds(left.keySet());
    }

    private SortedMap allBounds(Collection wanted) throws IOException {
        // The end of committed records comes first, so that it is not above the log's.
        SortedMap stable = offsets(wanted, Position.LATEST, options.committed);
        SortedMap ends = options.committed ? offsets(wanted, Position.LATEST, false) : stable;
        SortedMap starts = offsets(wanted, Position.EARLIEST, false);
        SortedMap found = new TreeMap();
        for (Iterator i = wanted.iterator(); i.hasNext();) {
            Object at = i.next();
            long start = KreplicaStream.offset(starts, at);
            found.put(at, new Bounds(start, Math.max(start, KreplicaStream.offset(stable, at)),
                KreplicaStream.offset(ends, at)));
        }
        return found;
    }

    private SortedMap offsets(Collection wanted, long timestamp, boolean committed) throws IOException {
        SortedMap asked = new TreeMap();
        for (Iterator i = wanted.iterator(); i.hasNext();) {
            asked.put(i.next(), Long.valueOf(timestamp));
        }
        return client.offsets(asked, committed);
    }

    public SortedMap offsetsFor(SortedMap times, SortedMap bounds) throws IOException {
        return client.offsets(times, options.committed);
    }

    public String place(TopicPartition at) {
        return "";
    }

    public long bytes(TopicPartition at, long start, long stop) {
        return Math.max(0, stop - start) * RECORD_BYTES;
    }

    public long boundary(TopicPartition at, long first, long wanted) {
        return wanted;
    }

    public void close() {
        client.close();
    }
}
