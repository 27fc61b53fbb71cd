package org.kreplica.spark;

/**
 * What there is of a partition for a reader: offsets [start, end). All below `logEnd` is there, though it may not be
 * known to be committed.
 */
final class Bounds {
    final long start;
    final long end;
    final long logEnd;

    Bounds(long start, long end, long logEnd) {
        this.start = start;
        this.end = end;
        this.logEnd = Math.max(end, logEnd);
    }
}
