package org.kreplica.spark;

/**
 * The offsets [start, end) of a partition that a reader may see. Records below `logEnd` exist, but may not be known
 * to be committed.
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
