package org.kreplica.spark;

import java.math.BigInteger;
import java.util.Arrays;
import java.util.Comparator;
import java.util.SortedMap;
import java.util.TreeMap;

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
