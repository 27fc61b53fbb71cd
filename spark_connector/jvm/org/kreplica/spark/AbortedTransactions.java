package org.kreplica.spark;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * The aborted transactions of a range, for readers of committed data.
 *
 * They come from the segments' `.txnindex` files. An entry has 34 bytes: the producer, the first offset, and the
 * offset of the abort marker. So offsets decide, and a damaged marker hides nothing after it. Immutable.
 */
final class AbortedTransactions {
    private static final int ENTRY = 34;

    /** The transactions of each producer id as {first offset, last offset}, sorted by first offset. */
    private final Map byProducer = new HashMap();

    private AbortedTransactions(List entries) {
        for (int i = 0; i < entries.size(); i++) {
            long[] entry = (long[]) entries.get(i);
            Long producerId = Long.valueOf(entry[0]);
            TreeMap known = (TreeMap) byProducer.get(producerId);
            if (known == null) {
                known = new TreeMap();
                byProducer.put(producerId, known);
            }
            known.put(Long.valueOf(entry[1]), Long.valueOf(entry[2]));
        }
    }

    /** Returns the aborted transactions with a record in [start, stop). */
    static AbortedTransactions of(PartitionLog log, long start, long stop) throws IOException {
        List found = new ArrayList();
        boolean complete = false;
        for (int i = log.segmentOf(start); i < log.segments.length && !complete; i++) {
            complete = collect(log.segments[i], start, stop, found);
        }
        return new AbortedTransactions(found);
    }

    /** Adds the segment's transactions to `found`; true if no later segment can add more to [start, stop). */
    private static boolean collect(Segment segment, long start, long stop, List found) throws IOException {
        String path = segment.path.substring(0, segment.path.length() - ".log".length()) + ".txnindex";
        ByteBuffer data;
        try {
            data = ByteBuffer.wrap(Files.readAllBytes(Paths.get(path, new String[0])));
        } catch (NoSuchFileException error) {
            return false;
        }
        // An incomplete last entry was never published by the writer.
        for (int at = 0; at + ENTRY <= data.capacity(); at += ENTRY) {
            long producerId = data.getLong(at + 2);
            long firstOffset = data.getLong(at + 10);
            long lastOffset = data.getLong(at + 18);
            if (data.getShort(at) != 0 || producerId < 0 || firstOffset < 0 || lastOffset <= firstOffset) {
                throw new ReadException(path + ": impossible entry at byte " + at);
            }
            if (lastOffset >= start && firstOffset < stop) {
                found.add(new long[] {producerId, firstOffset, lastOffset});
            }
            if (lastOffset >= start && data.getLong(at + 26) >= stop) {
                return true;
            }
        }
        return false;
    }

    /** Returns whether a reader of committed data sees the batch. */
    boolean admits(BatchHeader batch) {
        if (byProducer.isEmpty() || !batch.isTransactional() || batch.isControl()) {
            return true;
        }
        TreeMap known = (TreeMap) byProducer.get(Long.valueOf(batch.producerId));
        // The producer's last transaction that starts at or before the end of the batch.
        Map.Entry begun = known == null ? null : known.floorEntry(Long.valueOf(batch.lastOffset));
        return begun == null || ((Long) begun.getValue()).longValue() < batch.baseOffset;
    }
}
