package org.kreplica.spark;

import java.io.IOException;
import java.nio.ByteBuffer;
import org.kreplica.spark.Planner.LogRange;

/** The record batches of a task's range, of a log directory or from a cluster: those that may have records for it. */
interface RangeBatches {
    LogRange range();

    /** Returns the first offset that is read; after a loss it is above that of the range. */
    long start();

    long stop();

    /** Moves to the next batch; false at the end. */
    boolean next() throws IOException;

    BatchHeader header();

    /** Returns the first offset of the batch's segment, -1 if that is unknown. */
    long segment();

    /** Returns the bytes that hold the batch; `next` overwrites them unless `keepData` is set. */
    ByteBuffer data();

    /** Returns the position in `data` at which the batch begins. */
    int index();

    /** Sets whether `next` must leave `data` unchanged and use another buffer if necessary. */
    void keepData(boolean wanted);

    /** Notes that the batch's contents are not records, after its reader found that. */
    void skipRecords(String reason) throws IOException;

    /** Returns the number of batches that were read. */
    long batches();

    /** Returns the bytes of these batches. */
    long bytes();

    void close() throws IOException;
}
