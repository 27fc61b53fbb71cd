package org.kreplica.spark;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;

/**
 * Tells a reader of committed data which batches belong to an aborted transaction.
 *
 * The segments' `.txnindex` files say which were aborted, one entry of 34 bytes each. Batches must be shown in their
 * order: a transaction is over at its producer's marker.
 */
final class AbortedTransactions {
    private static final int ENTRY = 34;

    /** Producer id and first offset, by first offset. */
    private final long[][] waiting;
    private final Set active = new HashSet();
    private int next;

    private AbortedTransactions(long[][] waiting) {
        this.waiting = waiting;
    }

    /** Those with a record in [start, stop). */
    static AbortedTransactions of(PartitionLog log, long start, long stop) throws IOException {
        List found = new ArrayList();
        boolean complete = false;
        for (int i = log.segmentOf(start); i < log.segments.length && !complete; i++) {
            complete = collect(log.segments[i], start, stop, found);
        }
        long[][] entries = (long[][]) found.toArray(new long[0][]);
        Arrays.sort(entries, new java.util.Comparator() {
            public int compare(Object left, Object right) {
                return Long.compare(((long[]) left)[1], ((long[]) right)[1]);
            }
        });
        return new AbortedTransactions(entries);
    }

    /** Whether no transaction that ended in a later segment can belong to [start, stop). */
    private static boolean collect(Segment segment, long start, long stop, List found) throws IOException {
        String path = segment.path.substring(0, segment.path.length() - ".log".length()) + ".txnindex";
        ByteBuffer data;
        try {
            data = ByteBuffer.wrap(Files.readAllBytes(Paths.get(path, new String[0])));
        } catch (NoSuchFileException error) {
            return false;
        }
        // What is torn at its end its writer has not published either.
        for (int at = 0; at + ENTRY <= data.capacity(); at += ENTRY) {
            long producerId = data.getLong(at + 2);
            long firstOffset = data.getLong(at + 10);
            long lastOffset = data.getLong(at + 18);
            if (data.getShort(at) != 0 || producerId < 0 || firstOffset < 0 || lastOffset <= firstOffset) {
                throw new ReadException(path + ": impossible entry at byte " + at);
            }
            if (lastOffset >= start && firstOffset < stop) {
                found.add(new long[] {producerId, firstOffset});
            }
            if (lastOffset >= start && data.getLong(at + 26) >= stop) {
                return true;
            }
        }
        return false;
    }

    /** Whether a reader of committed data sees the batch. */
    boolean admits(BatchHeader batch) {
        while (next < waiting.length && waiting[next][1] <= batch.lastOffset) {
            active.add(Long.valueOf(waiting[next][0]));
            next++;
        }
        if (active.isEmpty() || !active.contains(Long.valueOf(batch.producerId))) {
            return true;
        }
        if (batch.isControl()) {
            active.remove(Long.valueOf(batch.producerId));
            return true;
        }
        return !batch.isTransactional();
    }
}
