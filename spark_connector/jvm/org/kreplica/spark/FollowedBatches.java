package org.kreplica.spark;

/** The record batches of a partition without an end: `next` waits for more of them, and is false at the deadline. */
interface FollowedBatches extends RangeBatches {
    /** Sets until when `next` waits. */
    void waitUntil(Deadline deadline);

    /** Returns the offset after the last batch that `next` has passed. */
    long nextOffset();
}
