package org.kreplica.spark;

import java.io.IOException;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import org.kreplica.spark.ClusterClient.Address;
import org.kreplica.spark.ClusterClient.Answered;
import org.kreplica.spark.ClusterClient.Exchange;
import org.kreplica.spark.Wire.AnswerReader;
import org.kreplica.spark.Wire.RequestWriter;

/**
 * Writes batches of records to a cluster in transactions of one transactional id.
 *
 * Partitions and the group are added to a transaction before they are written to. So it works with every cluster that
 * has transactions, whatever its transaction.version. The producer stays the same from one transaction to the next, so
 * a second producer of the id is noticed by the first one. One thread.
 */
final class TransactionalProducer {
    private static final int PRODUCE = 0;
    private static final int PRODUCE_VERSION = 9;
    private static final int OFFSET_FETCH = 9;
    private static final int OFFSET_FETCH_VERSION = 7;
    private static final int INIT_PRODUCER_ID = 22;
    private static final int ADD_PARTITIONS = 24;
    private static final int ADD_OFFSETS = 25;
    private static final int OFFSET_COMMIT = 28;
    /** The version of the requests of a transaction. */
    private static final int VERSION = 3;
    private static final int ALL_IN_SYNC = -1;
    private static final int APPEND_MS = 10_000;
    /** The most that a request has, besides a batch that is larger. */
    private static final int REQUEST_BYTES = 8 << 20;
    private static final String BATCH_NUMBER = "number of a batch of a Spark query, not an offset";

    private final ClusterClient client;
    /** The transactional id, and the group that has the numbers of the batches. */
    private final String id;
    private long producerId = -1;
    private int epoch = -1;
    private int timeoutMs;
    /** The next sequence number by partition. */
    private final Map sequences = new HashMap();

    TransactionalProducer(ClusterClient client, String id) {
        this.client = client;
        this.id = id;
    }

    /** Whether this producer has begun, and none of its transactions has failed. */
    boolean isReady(int timeout) {
        return producerId >= 0 && timeout <= timeoutMs;
    }

    /**
     * Fences previous producers of the transactional id. On return their last transaction is complete: it is aborted
     * if it was open.
     */
    void begin(final int timeout) throws IOException {
        forget();
        client.retrying(new Callable() {
            public Object call() throws IOException {
                RequestWriter body = new RequestWriter().text(id).int32(timeout).int64(-1).int16(-1).end();
                AnswerReader answer = ask(ClusterClient.TRANSACTION, INIT_PRODUCER_ID, body);
                answer.int32();
                ClusterError.require(answer.int16(), id);
                producerId = answer.int64();
                epoch = answer.int16();
                return null;
            }
        });
        timeoutMs = timeout;
    }

    /** Begins anew with the next transaction. */
    void forget() {
        producerId = -1;
        sequences.clear();
    }

    private AnswerReader ask(int kind, int apiKey, RequestWriter body) throws IOException {
        Address coordinator = client.coordinator(kind, id);
        client.send(coordinator, apiKey, VERSION, body);
        return client.receive(coordinator);
    }

    /** Returns the largest number of a batch that a transaction has committed, -1 without one. */
    long lastWritten() throws IOException {
        final long[] found = {-1};
        client.retrying(new Callable() {
            public Object call() throws IOException {
                found[0] = fetchNumber();
                return null;
            }
        });
        return found[0];
    }

    private long fetchNumber() throws IOException {
        Address coordinator = client.coordinator(ClusterClient.GROUP, id);
        // All topics, once no transaction may change their offsets.
        RequestWriter body = new RequestWriter().text(id).int8(0).bool(true).end();
        client.send(coordinator, OFFSET_FETCH, OFFSET_FETCH_VERSION, body);
        AnswerReader answer = client.receive(coordinator);
        answer.int32();
        long found = -1;
        int topics = answer.array();
        for (int i = 0; i < topics; i++) {
            answer.text();
            int partitions = answer.array();
            for (int j = 0; j < partitions; j++) {
                answer.int32();
                found = Math.max(found, answer.int64());
                answer.int32();
                answer.text();
                ClusterError.require(answer.int16(), id);
                answer.end();
            }
            answer.end();
        }
        ClusterError.require(answer.int16(), id);
        return found;
    }

    /** Writes the batches of a query's batch in one transaction; `batches`: lists of bytes by partition. */
    void write(SortedMap batches, long number) throws IOException {
        add(batches);
        append(batches, number);
        end(true);
    }

    private void add(SortedMap batches) throws IOException {
        Map topics = topics(batches);
        RequestWriter partitions = transaction().array(topics.size());
        for (Iterator i = topics.entrySet().iterator(); i.hasNext();) {
            Map.Entry topic = (Map.Entry) i.next();
            List mine = (List) topic.getValue();
            partitions.text((String) topic.getKey()).array(mine.size());
            for (Iterator j = mine.iterator(); j.hasNext();) {
                partitions.int32(((TopicPartition) j.next()).partition);
            }
            partitions.end();
        }
        final RequestWriter first = partitions.end();
        final RequestWriter second = transaction().text(id).end();
        client.retrying(new Callable() {
            public Object call() throws IOException {
                Address coordinator = client.coordinator(ClusterClient.TRANSACTION, id);
                Exchange exchange = client.new Exchange();
                exchange.send(coordinator, ADD_PARTITIONS, VERSION, first, new OfPartitions());
                exchange.send(coordinator, ADD_OFFSETS, VERSION, second, new OfWhole());
                exchange.finish();
                return null;
            }
        });
    }

    private static Map topics(SortedMap batches) {
        Map found = new LinkedHashMap();
        for (Iterator i = batches.keySet().iterator(); i.hasNext();) {
            TopicPartition at = (TopicPartition) i.next();
            ClusterClient.put(found, at.topic, at);
        }
        return found;
    }

    /** Returns a request that begins with the transactional id and the producer. */
    private RequestWriter transaction() {
        return new RequestWriter().text(id).int64(producerId).int16(epoch);
    }

    private void append(final SortedMap batches, long number) throws IOException {
        final Appends appends = new Appends(batches, offsetsRequest(topics(batches), number));
        client.retrying(new Callable() {
            public Object call() throws IOException {
                while (!appends.isDone()) {
                    appends.round();
                }
                return null;
            }
        });
        for (Iterator i = batches.entrySet().iterator(); i.hasNext();) {
            Map.Entry each = (Map.Entry) i.next();
            sequences.put(each.getKey(), Integer.valueOf(appends.sequence(each.getKey())));
        }
    }

    /** Returns the request that commits the number as the offset of one partition of each topic. */
    private RequestWriter offsetsRequest(Map topics, long number) {
        RequestWriter body = new RequestWriter().text(id).text(id).int64(producerId).int16(epoch);
        body.int32(-1).text("").text(null).array(topics.size());
        for (Iterator i = topics.entrySet().iterator(); i.hasNext();) {
            Map.Entry topic = (Map.Entry) i.next();
            TopicPartition first = (TopicPartition) ((List) topic.getValue()).get(0);
            body.text(first.topic).array(1).int32(first.partition).int64(number).int32(-1).text(BATCH_NUMBER);
            body.end().end();
        }
        return body.end();
    }

    /** Commits or aborts the transaction; on return the outcome is stored. */
    void end(boolean commits) throws IOException {
        final RequestWriter body = transaction().bool(commits).end();
        client.retrying(new Callable() {
            public Object call() throws IOException {
                AnswerReader answer = ask(ClusterClient.TRANSACTION, ClusterClient.END_TRANSACTION, body);
                new OfWhole().take(answer);
                return null;
            }
        });
    }

    /** Takes an answer with one error code. */
    private final class OfWhole implements Answered {
        public void take(AnswerReader answer) throws IOException {
            answer.int32();
            ClusterError.require(answer.int16(), id);
        }
    }

    /** Takes an answer with an error code for each partition; a cause comes before partitions not attempted. */
    private final class OfPartitions implements Answered {
        private static final int NOT_ATTEMPTED = 55;

        public void take(AnswerReader answer) throws IOException {
            answer.int32();
            int found = 0;
            int topics = answer.array();
            for (int i = 0; i < topics; i++) {
                answer.text();
                int partitions = answer.array();
                for (int j = 0; j < partitions; j++) {
                    answer.int32();
                    int code = answer.int16();
                    found = code != 0 && (found == 0 || found == NOT_ATTEMPTED) ? code : found;
                    answer.end();
                }
                answer.end();
            }
            ClusterError.require(found, id);
        }
    }

    /** The appends of one transaction, and the commit of its number: what is not done yet. One thread. */
    private final class Appends {
        private final SortedMap left = new TreeMap();
        private final Map next = new HashMap();
        private RequestWriter offsets;

        Appends(SortedMap batches, RequestWriter offsets) {
            this.offsets = offsets;
            for (Iterator i = batches.entrySet().iterator(); i.hasNext();) {
                Map.Entry each = (Map.Entry) i.next();
                left.put(each.getKey(), ((List) each.getValue()).iterator());
                Integer known = (Integer) sequences.get(each.getKey());
                next.put(each.getKey(), known == null ? Integer.valueOf(0) : known);
                advance((TopicPartition) each.getKey());
            }
        }

        /** The batch that each partition gets next. */
        private final Map current = new HashMap();

        boolean isDone() {
            return offsets == null && left.isEmpty();
        }

        int sequence(Object at) {
            return ((Integer) next.get(at)).intValue();
        }

        private void advance(TopicPartition at) {
            Iterator batches = (Iterator) left.get(at);
            if (!batches.hasNext()) {
                left.remove(at);
                current.remove(at);
                return;
            }
            byte[] batch = ((StagedBatch) batches.next()).bytes();
            BatchBuilder.stamp(batch, producerId, epoch, sequence(at));
            current.put(at, batch);
        }

        /** Sends the next batch of each partition, and the number; waits for all answers. */
        void round() throws IOException {
            // All brokers are known before the first request, so that its answer is the next one.
            Address coordinator = client.coordinator(ClusterClient.GROUP, id);
            Map byLeader = new LinkedHashMap();
            for (Iterator i = left.keySet().iterator(); i.hasNext();) {
                TopicPartition at = (TopicPartition) i.next();
                ClusterClient.put(byLeader, client.leader(at).address, at);
            }
            Exchange exchange = client.new Exchange();
            if (offsets != null) {
                exchange.send(coordinator, OFFSET_COMMIT, VERSION, offsets, new Answered() {
                    public void take(AnswerReader answer) throws IOException {
                        new OfPartitions().take(answer);
                        offsets = null;
                    }
                });
            }
            for (Iterator i = byLeader.entrySet().iterator(); i.hasNext();) {
                Map.Entry each = (Map.Entry) i.next();
                exchange.send((Address) each.getKey(), PRODUCE, PRODUCE_VERSION, produce((List) each.getValue()),
                    new Answered() {
                        public void take(AnswerReader answer) throws IOException {
                            appended(answer);
                        }
                    });
            }
            exchange.finish();
        }

        private RequestWriter produce(List partitions) {
            Map topics = new LinkedHashMap();
            int bytes = 0;
            for (Iterator i = partitions.iterator(); i.hasNext();) {
                TopicPartition at = (TopicPartition) i.next();
                bytes += ((byte[]) current.get(at)).length;
                if (topics.isEmpty() || bytes <= REQUEST_BYTES) {
                    ClusterClient.put(topics, at.topic, at);
                }
            }
            RequestWriter body = new RequestWriter().text(id).int16(ALL_IN_SYNC).int32(APPEND_MS);
            body.array(topics.size());
            for (Iterator i = topics.entrySet().iterator(); i.hasNext();) {
                Map.Entry topic = (Map.Entry) i.next();
                List mine = (List) topic.getValue();
                body.text((String) topic.getKey()).array(mine.size());
                for (Iterator j = mine.iterator(); j.hasNext();) {
                    TopicPartition at = (TopicPartition) j.next();
                    body.int32(at.partition).bytes(java.nio.ByteBuffer.wrap((byte[]) current.get(at))).end();
                }
                body.end();
            }
            return body.end();
        }

        private void appended(AnswerReader answer) throws IOException {
            ClusterError problem = null;
            int topics = answer.array();
            for (int i = 0; i < topics; i++) {
                String topic = answer.text();
                int partitions = answer.array();
                for (int j = 0; j < partitions; j++) {
                    TopicPartition at = new TopicPartition(topic, answer.int32());
                    int code = answer.int16();
                    String text = skipDetails(answer);
                    // The batch may be in the log already, but too far back for the leader to know its offset.
                    if (code == 0 || code == ClusterError.DUPLICATE_SEQUENCE_NUMBER) {
                        int count = BatchBuilder.count((byte[]) current.get(at));
                        next.put(at, Integer.valueOf(after(sequence(at), count)));
                        advance(at);
                    } else if (problem == null) {
                        problem = new ClusterError(code, text == null ? at.toString() : at + ": " + text);
                    }
                }
                answer.end();
            }
            if (problem != null) {
                throw problem;
            }
        }

        /** Skips what an answer says of an append, up to its message, which is returned. */
        private String skipDetails(AnswerReader answer) throws IOException {
            answer.skip(3 * 8);
            int errors = answer.array();
            for (int i = 0; i < errors; i++) {
                answer.int32();
                answer.text();
                answer.end();
            }
            String text = answer.text();
            answer.end();
            return text;
        }

        /** Returns the sequence number `count` after `first`; 0 follows the largest. */
        private int after(int first, int count) {
            return (int) (((long) first + count) % (1L << 31));
        }
    }
}
