package org.kreplica.spark;

import java.io.IOException;
import java.util.Collection;
import java.util.Set;
import java.util.SortedMap;

/** The port through which a plan learns of partitions and offsets, of log directories or of a cluster. One thread. */
interface LogSource {
    /** Returns all partitions, sorted. */
    Set partitions() throws IOException;

    /** Returns the Bounds of these partitions, by partition. One that was deleted is an error or left out. */
    SortedMap bounds(Collection partitions) throws IOException;

    /**
     * Returns, by partition, the first offset with the given time (ms since 1970) or a later one, -1 without one.
     * `bounds`: those of the partitions.
     */
    SortedMap offsetsFor(SortedMap times, SortedMap bounds) throws IOException;

    /** Returns where a task finds the partition. */
    String place(TopicPartition at) throws IOException;

    /** Estimates the bytes of the records in [start, stop). */
    long bytes(TopicPartition at, long start, long stop) throws IOException;

    /** Returns the offset after `first` and near `wanted` at which the next task begins. */
    long boundary(TopicPartition at, long first, long wanted) throws IOException;

    /** Gives back what is open; the source may be used again. */
    void close();
}
