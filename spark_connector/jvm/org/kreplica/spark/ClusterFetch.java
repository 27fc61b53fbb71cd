package org.kreplica.spark;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.zip.CRC32C;
import org.kreplica.spark.ClusterClient.Leader;
import org.kreplica.spark.ClusterConnection.Frame;
import org.kreplica.spark.Planner.LogRange;
import org.kreplica.spark.ReaderFactory.ReadSettings;
import org.kreplica.spark.ReadOptions.Position;
import org.kreplica.spark.Wire.AnswerReader;
import org.kreplica.spark.Wire.RequestWriter;

/**
 * Fetches the batches of a task's range from the partition's leader.
 *
 * The next request is sent before the batches of an answer are read, so the broker works meanwhile. Batches are checked
 * against their checksums. It skips control batches and, for a reader of committed data, aborted ones.
 *
 * A range that ends at NO_END is followed: where a broker has no more records, it is asked to wait for them. One
 * thread.
 */
final class ClusterFetch implements FollowedBatches {
    private static final int FETCH = 1;
    private static final int FETCH_VERSION = 12;
    private static final int CONSUMER = -1;
    private static final int WAIT_MS = 500;
    /** The most that an answer has, besides a first batch that is larger. */
    private static final int ANSWER_BYTES = 4 << 20;
    /** A broker's answer takes less than this; its wait ends so much before the deadline. */
    private static final long ANSWER_MS = 20;

    private final LogRange range;
    private final boolean committed;
    private final boolean failOnDataLoss;
    private final ClusterClient client;
    private final BatchHeader header = new BatchHeader();
    private final CRC32C checksum = new CRC32C();
    private final Aborted aborted = new Aborted();
    private Frame frame = new Frame();
    private Frame other = new Frame();
    private boolean keeps;
    /** The leader that has been asked for the next answer; null if no request is on its way. */
    private Leader asked;
    private ByteBuffer data = ByteBuffer.allocate(0);
    private int position;
    private int index;
    private long start;
    private long nextOffset;
    private boolean isGone;
    private Deadline deadline = Deadline.NEVER;
    private long batches;
    private long bytes;

    ClusterFetch(LogRange range, ReadSettings settings) {
        this.range = range;
        committed = settings.committed;
        failOnDataLoss = settings.failOnDataLoss;
        client = new ClusterClient(settings.servers);
        start = range.start;
        nextOffset = range.start;
    }

    public LogRange range() {
        return range;
    }

    public long start() {
        return start;
    }

    public long stop() {
        return range.stop;
    }

    public void waitUntil(Deadline deadline) {
        this.deadline = deadline;
        client.waitUntil(deadline);
    }

    public long nextOffset() {
        return nextOffset;
    }

    private boolean isFollowed() {
        return range.stop == LogRange.NO_END;
    }

    public BatchHeader header() {
        return header;
    }

    public long segment() {
        return -1;
    }

    public ByteBuffer data() {
        return data;
    }

    public int index() {
        return index;
    }

    public void keepData(boolean wanted) {
        keeps = wanted;
    }

    public long batches() {
        return batches;
    }

    public long bytes() {
        return bytes;
    }

    public void skipRecords(String reason) {
        throw damaged(reason);
    }

    private ReadException damaged(String reason) {
        return new ReadException(range.at + ": damaged records at offset " + nextOffset + " from " + client + ": "
            + reason);
    }

    public boolean next() throws IOException {
        while (nextOffset < range.stop) {
            if (!hasBatch()) {
                if (mustEnd()) {
                    return false;
                }
                fetchMore();
                continue;
            }
            index = position;
            String wrong = header.read(data, position, data.limit() - position);
            if (wrong == null && !fitsChecksum()) {
                wrong = "the checksum does not match";
            }
            if (wrong != null) {
                throw damaged(wrong);
            }
            position += header.size;
            if (header.lastOffset < nextOffset) {
                continue;
            }
            nextOffset = header.lastOffset + 1;
            batches++;
            bytes += header.size;
            if (isWanted()) {
                return true;
            }
        }
        return false;
    }

    /** Returns whether the read ends without the next batch. */
    private boolean mustEnd() throws IOException {
        if (!isFollowed()) {
            return isGone;
        }
        Deadline.requireTask();
        while (isGone && !deadline.hasPassed()) {
            deadline.pause(WAIT_MS);
        }
        return isOver();
    }

    /** Returns whether too little time is left to ask for more. */
    private boolean isOver() {
        return isFollowed() && deadline.leftMs(WAIT_MS) <= ANSWER_MS;
    }

    private boolean isWanted() {
        boolean admitted = !committed || aborted.admits(header, data, index);
        boolean isLate = header.isLogAppendTime() && header.maxTimestamp > range.toTime;
        return admitted && !header.isControl() && header.recordCount > 0 && header.baseOffset < range.stop
            && header.maxTimestamp >= range.fromTime && !isLate;
    }

    private boolean fitsChecksum() {
        checksum.reset();
        ByteBuffer covered = (ByteBuffer) data.duplicate();
        covered.limit(index + header.size);
        covered.position(index + BatchHeader.CRC_START);
        checksum.update(covered);
        return (int) checksum.getValue() == header.crc;
    }

    /** Returns whether a whole batch follows; an answer may end within one. */
    private boolean hasBatch() {
        int left = data.limit() - position;
        return left >= BatchHeader.LOG_OVERHEAD && data.getInt(position + 8) <= left - BatchHeader.LOG_OVERHEAD;
    }

    // ---- requests --------------------------------------------------------------------------------------------------

    /** Gets the answer from `nextOffset` on. It may have no records, because they are gone or the time is over. */
    private void fetchMore() throws IOException {
        try {
            fetchOrSkip();
        } catch (ClusterError error) {
            if (!error.isRetriable() || !deadline.hasPassed()) {
                throw error;
            }
            asked = null;
            KreplicaProvider.LOGGER.warn("{}: asked again in the next batch: {}", range.at, error.getMessage());
        }
    }

    private void fetchOrSkip() throws IOException {
        try {
            client.retrying(new Callable() {
                public Object call() throws IOException {
                    fetch();
                    return null;
                }
            });
        } catch (ClusterError error) {
            asked = null;
            if (error.code == ClusterError.OFFSET_OUT_OF_RANGE) {
                skipLost();
            } else if (error.code == ClusterError.UNKNOWN_TOPIC_OR_PARTITION && !deadline.hasPassed()) {
                ReadException.lost(failOnDataLoss, range.at + ": the partition no longer exists");
                isGone = true;
            } else {
                throw error;
            }
        }
    }

    private void fetch() throws IOException {
        if (asked == null) {
            ask(nextOffset);
        }
        Leader leader = asked;
        asked = null;
        if (keeps) {
            Frame kept = frame;
            frame = other;
            other = kept;
            keeps = false;
        }
        take(client.receive(leader.address, frame));
        // The offset after the answer's last whole batch.
        long after = after();
        if (after < range.stop && !isOver()) {
            askAhead(after);
        }
    }

    private void askAhead(long offset) {
        try {
            ask(offset);
        } catch (IOException error) {
            KreplicaProvider.LOGGER.debug("{}: asked again when the records are needed", range.at, error);
        }
    }

    private void ask(long offset) throws IOException {
        Leader leader = client.leader(range.at);
        int waitMs = isFollowed() ? (int) Math.max(0, deadline.leftMs(WAIT_MS + ANSWER_MS) - ANSWER_MS) : WAIT_MS;
        RequestWriter body = new RequestWriter().int32(CONSUMER).int32(waitMs).int32(1).int32(ANSWER_BYTES);
        body.int8(committed ? 1 : 0).int32(0).int32(-1);
        body.array(1).text(range.at.topic).array(1);
        body.int32(range.at.partition).int32(leader.epoch).int64(offset).int32(-1).int64(-1).int32(ANSWER_BYTES);
        body.end().end().array(0).text("").end();
        client.send(leader.address, FETCH, FETCH_VERSION, body);
        asked = leader;
    }

    private void take(AnswerReader answer) throws IOException {
        answer.int32();
        ClusterError.require(answer.int16(), range.at.toString());
        answer.int32();
        answer.array();
        answer.text();
        answer.array();
        answer.int32();
        ClusterError.require(answer.int16(), range.at.toString());
        answer.int64();
        answer.int64();
        answer.int64();
        aborted.begin(answer);
        answer.int32();
        ByteBuffer records = answer.bytes();
        if (!records.hasRemaining() && !isFollowed()) {
            // The record existed when the read was planned. A new leader may not know yet that it is committed.
            throw new ClusterError(ClusterError.REQUEST_TIMED_OUT, range.at + ": no records at offset " + nextOffset);
        }
        data = records;
        position = 0;
        if (records.hasRemaining() && !hasBatch()) {
            throw damaged("a batch that ends behind the answer");
        }
    }

    private long after() throws IOException {
        long found = nextOffset;
        int from = position;
        while (hasBatch() && header.read(data, position, data.limit() - position) == null) {
            found = Math.max(found, header.lastOffset + 1);
            position += header.size;
        }
        position = from;
        return found;
    }

    private void skipLost() throws IOException {
        long first = client.offset(range.at, Position.EARLIEST, false);
        if (first > nextOffset) {
            long gone = Math.min(first, range.stop);
            ReadException.lost(failOnDataLoss,
                range.at + ": offsets " + nextOffset + " to " + (gone - 1) + " no longer exist");
            nextOffset = gone;
            start = Math.max(start, gone);
        } else {
            ReadException.lost(failOnDataLoss, range.at + ": the log ends below " + nextOffset
                + ", but was already read up to there");
            isGone = !isFollowed();
            nextOffset = isGone ? nextOffset : client.offset(range.at, Position.LATEST, false);
            start = Math.min(start, nextOffset);
        }
    }

    public void close() {
        client.close();
    }

    /** The aborted transactions of one answer: the producers whose transactions are being passed. One thread. */
    private static final class Aborted {
        private static final int ABORT = 0;

        /** The first offsets of the aborted transactions of each producer, as a TreeSet by producer id. */
        private final Map firsts = new HashMap();
        private final TreeSet open = new TreeSet();

        void begin(AnswerReader answer) throws IOException {
            firsts.clear();
            open.clear();
            int count = Math.max(0, answer.array());
            for (int i = 0; i < count; i++) {
                Long producer = Long.valueOf(answer.int64());
                TreeSet mine = (TreeSet) firsts.get(producer);
                if (mine == null) {
                    mine = new TreeSet();
                    firsts.put(producer, mine);
                }
                mine.add(Long.valueOf(answer.int64()));
                answer.end();
            }
        }

        /** Returns whether a reader of committed data sees the batch; batches come in the order of their offsets. */
        boolean admits(BatchHeader batch, ByteBuffer data, int index) {
            if (firsts.isEmpty() || !batch.isTransactional()) {
                return true;
            }
            Long producer = Long.valueOf(batch.producerId);
            TreeSet mine = (TreeSet) firsts.get(producer);
            if (mine != null && !mine.isEmpty() && ((Long) mine.first()).longValue() <= batch.lastOffset) {
                mine.pollFirst();
                open.add(producer);
            }
            if (batch.isControl()) {
                if (batch.controlType(data, index) == ABORT) {
                    open.remove(producer);
                }
                return true;
            }
            return !open.contains(producer);
        }
    }
}
