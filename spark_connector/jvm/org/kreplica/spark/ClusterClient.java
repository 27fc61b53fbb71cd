package org.kreplica.spark;

import java.io.IOException;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import org.kreplica.spark.Wire.AnswerReader;
import org.kreplica.spark.Wire.RequestWriter;

/**
 * A client of a running cluster, kreplica's or Kafka's: finds partitions, leaders and offsets.
 *
 * A request goes to the partition's leader. If the broker is gone, the client looks for the new one for up to
 * TIMEOUT_MS. One thread.
 */
final class ClusterClient {
    static final int LIST_OFFSETS = 2;
    static final int METADATA = 3;
    static final int API_VERSIONS = 18;
    static final int END_TRANSACTION = 26;
    /** Kinds of coordinators. */
    static final int GROUP = 0;
    static final int TRANSACTION = 1;
    private static final int FIND_COORDINATOR = 10;
    private static final int FIND_COORDINATOR_VERSION = 3;
    private static final int API_VERSIONS_VERSION = 3;
    /** The tag of this field in the answer to ApiVersions. */
    private static final int FINALIZED_FEATURES = 2;
    private static final int LIST_OFFSETS_VERSION = 7;
    private static final int METADATA_VERSION = 9;
    private static final int CONSUMER = -1;
    private static final long TIMEOUT_MS = 60_000;
    /** A cluster that has never answered is more likely named wrongly than out of order. */
    private static final long FIRST_CONTACT_MS = 10_000;
    /** Brokers learn of a new topic within this time; later it is a topic that does not exist. */
    private static final long UNKNOWN_MS = 3_000;
    private static final long BACKOFF_MS = 100;
    /** A broker answers within half a second, or within the timeout that a request has. */
    private static final long ANSWER_MS = 40_000;
    /** With a deadline, a broker that is silent for so long counts as gone. */
    private static final long PROMPT_ANSWER_MS = 10_000;
    /** The markers of the previous transaction are on their way; this takes some milliseconds. */
    private static final long CONCURRENT_BACKOFF_MS = 10;

    private final String servers;
    private final List bootstrap;
    /** A Leader by TopicPartition; empty if unknown. */
    private SortedMap leaders = new TreeMap();
    /** An Address by kind and key. */
    private final Map coordinators = new HashMap();
    /** A ClusterConnection by Address. */
    private final Map connections = new LinkedHashMap();
    private boolean hasAnswered;
    private Deadline deadline = Deadline.NEVER;

    /** `servers`: host:port, separated by commas. Raises ReadException. */
    ClusterClient(String servers) {
        this.servers = servers;
        bootstrap = Address.all(servers);
    }

    public String toString() {
        return "the cluster at " + servers;
    }

    /** Sets until when requests may take; later ones fail with a ClusterError. */
    void waitUntil(Deadline deadline) {
        this.deadline = deadline;
    }

    /** Gives the connections back; the client may be used again. */
    void close() {
        for (Iterator i = connections.values().iterator(); i.hasNext();) {
            ((ClusterConnection) i.next()).release();
        }
        connections.clear();
    }

    // ---- requests --------------------------------------------------------------------------------------------------

    /** Returns the leaders of all partitions of the cluster, as they are now. */
    SortedMap leaders() throws IOException {
        retrying(new Callable() {
            public Object call() throws IOException {
                refresh();
                return null;
            }
        });
        return leaders;
    }

    /**
     * Returns the offset by partition for the timestamps by partition: -2 the first offset, -1 the end, else the first
     * offset with this time or a later one, or -1. One request goes to each leader.
     */
    SortedMap offsets(final SortedMap timestamps, final boolean committed) throws IOException {
        final SortedMap found = new TreeMap();
        retrying(new Callable() {
            public Object call() throws IOException {
                list(timestamps, committed, found);
                return null;
            }
        });
        return found;
    }

    private void list(SortedMap timestamps, boolean committed, final SortedMap found) throws IOException {
        Map byLeader = new LinkedHashMap();
        for (Iterator i = timestamps.keySet().iterator(); i.hasNext();) {
            TopicPartition at = (TopicPartition) i.next();
            if (!found.containsKey(at)) {
                put(byLeader, leader(at).address, at);
            }
        }
        Exchange exchange = new Exchange();
        for (Iterator i = byLeader.entrySet().iterator(); i.hasNext();) {
            Map.Entry each = (Map.Entry) i.next();
            RequestWriter body = listRequest((List) each.getValue(), timestamps, committed);
            exchange.send((Address) each.getKey(), LIST_OFFSETS, LIST_OFFSETS_VERSION, body, new Answered() {
                public void take(AnswerReader answer) throws IOException {
                    listed(answer, found);
                }
            });
        }
        exchange.finish();
    }

    /** Adds a value to the list of a key. */
    static void put(Map lists, Object key, Object value) {
        List list = (List) lists.get(key);
        if (list == null) {
            list = new ArrayList();
            lists.put(key, list);
        }
        list.add(value);
    }

    private RequestWriter listRequest(List partitions, SortedMap timestamps, boolean committed) {
        Map byTopic = new LinkedHashMap();
        for (Iterator i = partitions.iterator(); i.hasNext();) {
            TopicPartition at = (TopicPartition) i.next();
            put(byTopic, at.topic, at);
        }
        RequestWriter body = new RequestWriter().int32(CONSUMER).int8(committed ? 1 : 0).array(byTopic.size());
        for (Iterator i = byTopic.entrySet().iterator(); i.hasNext();) {
            Map.Entry topic = (Map.Entry) i.next();
            List mine = (List) topic.getValue();
            body.text((String) topic.getKey()).array(mine.size());
            for (Iterator j = mine.iterator(); j.hasNext();) {
                TopicPartition at = (TopicPartition) j.next();
                long timestamp = ((Long) timestamps.get(at)).longValue();
                body.int32(at.partition).int32(((Leader) leaders.get(at)).epoch).int64(timestamp).end();
            }
            body.end();
        }
        return body.end();
    }

    /** Adds the offsets of an answer to `found`. Raises the first error in it. */
    private static void listed(AnswerReader answer, SortedMap found) throws IOException {
        ClusterError problem = null;
        answer.int32();
        int topics = answer.array();
        for (int i = 0; i < topics; i++) {
            String topic = answer.text();
            int partitions = answer.array();
            for (int j = 0; j < partitions; j++) {
                TopicPartition at = new TopicPartition(topic, answer.int32());
                int error = answer.int16();
                answer.int64();
                long offset = answer.int64();
                answer.int32();
                answer.end();
                if (error == 0) {
                    found.put(at, Long.valueOf(offset));
                } else if (problem == null) {
                    problem = new ClusterError(error, at.toString());
                }
            }
            answer.end();
        }
        if (problem != null) {
            throw problem;
        }
    }

    /** Returns the offset of one partition, as `offsets` does. */
    long offset(TopicPartition at, long timestamp, boolean committed) throws IOException {
        SortedMap wanted = new TreeMap();
        wanted.put(at, Long.valueOf(timestamp));
        return ((Long) offsets(wanted, committed).get(at)).longValue();
    }

    // ---- transactions ----------------------------------------------------------------------------------------------

    /** Returns the coordinator of a group or of a transactional id. */
    Address coordinator(int kind, String key) throws IOException {
        String known = kind + " " + key;
        Address found = (Address) coordinators.get(known);
        if (found == null) {
            RequestWriter body = new RequestWriter().text(key).int8(kind).end();
            AnswerReader answer = askAny(FIND_COORDINATOR, FIND_COORDINATOR_VERSION, body);
            answer.int32();
            ClusterError.require(answer.int16(), "the coordinator of " + key);
            answer.text();
            answer.int32();
            found = new Address(answer.text(), answer.int32());
            coordinators.put(known, found);
        }
        return found;
    }

    /** Returns the finalized level of transaction.version; -1 if the cluster has no transactions. */
    int transactionVersion() throws IOException {
        final int[] found = {-1};
        retrying(new Callable() {
            public Object call() throws IOException {
                RequestWriter body = new RequestWriter().text("kreplica").text("1").end();
                found[0] = transactionVersion(askAny(API_VERSIONS, API_VERSIONS_VERSION, body));
                return null;
            }
        });
        return found[0];
    }

    private static int transactionVersion(AnswerReader answer) throws IOException {
        ClusterError.require(answer.int16(), "the versions of requests");
        boolean hasTransactions = false;
        int keys = answer.array();
        for (int i = 0; i < keys; i++) {
            hasTransactions = answer.int16() == END_TRANSACTION || hasTransactions;
            answer.int32();
            answer.end();
        }
        answer.int32();
        int level = 0;
        int tags = answer.unsigned();
        for (int i = 0; i < tags; i++) {
            int tag = answer.unsigned();
            int size = answer.unsigned();
            if (tag == FINALIZED_FEATURES) {
                level = finalized(answer);
            } else {
                answer.skip(size);
            }
        }
        return hasTransactions ? level : -1;
    }

    private static int finalized(AnswerReader answer) throws IOException {
        int level = 0;
        int features = answer.array();
        for (int i = 0; i < features; i++) {
            boolean isIt = "transaction.version".equals(answer.text());
            int most = answer.int16();
            answer.int16();
            answer.end();
            level = isIt ? most : level;
        }
        return level;
    }

    // ---- leaders and connections -----------------------------------------------------------------------------------

    /** Returns the partition's leader. Raises ClusterError if it has no leader. */
    Leader leader(TopicPartition at) throws IOException {
        if (!leaders.containsKey(at)) {
            refresh();
        }
        Leader found = (Leader) leaders.get(at);
        if (found == null) {
            throw new ClusterError(ClusterError.UNKNOWN_TOPIC_OR_PARTITION, at + ": " + this
                + " has no such partition");
        }
        if (found.address == null) {
            throw new ClusterError(ClusterError.LEADER_NOT_AVAILABLE, at + ": no leader in " + this);
        }
        return found;
    }

    private void refresh() throws IOException {
        RequestWriter body = new RequestWriter().int8(0).bool(false).bool(false).bool(false).end();
        AnswerReader answer = askAny(METADATA, METADATA_VERSION, body);
        answer.int32();
        Map brokers = new HashMap();
        int count = answer.array();
        for (int i = 0; i < count; i++) {
            Integer id = Integer.valueOf(answer.int32());
            brokers.put(id, new Address(answer.text(), answer.int32()));
            answer.text();
            answer.end();
        }
        answer.text();
        answer.int32();
        SortedMap found = new TreeMap();
        count = answer.array();
        for (int i = 0; i < count; i++) {
            addTopic(answer, brokers, found);
        }
        leaders = found;
    }

    private static void addTopic(AnswerReader answer, Map brokers, SortedMap found) throws IOException {
        answer.int16();
        String topic = answer.text();
        answer.bool();
        int partitions = answer.array();
        for (int i = 0; i < partitions; i++) {
            answer.int16();
            TopicPartition at = new TopicPartition(topic, answer.int32());
            Address leader = (Address) brokers.get(Integer.valueOf(answer.int32()));
            found.put(at, new Leader(leader, answer.int32()));
            answer.skipArray(4);
            answer.skipArray(4);
            answer.skipArray(4);
            answer.end();
        }
        answer.int32();
        answer.end();
    }

    private AnswerReader askAny(int apiKey, int version, RequestWriter body) throws IOException {
        Collection known = new java.util.LinkedHashSet(connections.keySet());
        known.addAll(bootstrap);
        for (Iterator i = leaders.values().iterator(); i.hasNext();) {
            Leader each = (Leader) i.next();
            if (each.address != null) {
                known.add(each.address);
            }
        }
        List failed = new ArrayList();
        for (Iterator i = known.iterator(); i.hasNext();) {
            AnswerReader answer = askOne((Address) i.next(), apiKey, version, body, failed);
            if (answer != null) {
                return answer;
            }
        }
        throw new ClusterError(ClusterError.NETWORK, "kafka.bootstrap.servers: no server answers, check the addresses: "
            + String.join("; ", failed));
    }

    /** Returns the answer of one broker; null if it cannot be reached, with the reason in `failed`. */
    private AnswerReader askOne(Address address, int apiKey, int version, RequestWriter body, List failed) {
        try {
            send(address, apiKey, version, body);
            return receive(address);
        } catch (IOException error) {
            failed.add(error.getMessage());
        }
        return null;
    }

    /** Sends a request to a broker. Raises ClusterError if it cannot be reached. */
    void send(Address address, int apiKey, int version, RequestWriter body) throws IOException {
        ClusterConnection connection = (ClusterConnection) connections.get(address);
        try {
            if (connection == null) {
                connection = ClusterConnection.open(address, deadline);
                connections.put(address, connection);
            }
            connection.send(apiKey, version, body);
        } catch (IOException error) {
            throw dropped(address, error);
        }
    }

    AnswerReader receive(Address address) throws IOException {
        return receive(address, new ClusterConnection.Frame());
    }

    /** Returns the next answer of a broker. Raises ClusterError if the connection ends. */
    AnswerReader receive(Address address, ClusterConnection.Frame into) throws IOException {
        ClusterConnection connection = (ClusterConnection) connections.get(address);
        if (connection == null) {
            throw new ClusterError(ClusterError.NETWORK, address + ": the connection was closed");
        }
        AnswerReader answer;
        try {
            answer = connection.receive(into,
                deadline.leftMs(deadline == Deadline.NEVER ? ANSWER_MS : PROMPT_ANSWER_MS));
        } catch (IOException error) {
            throw dropped(address, error);
        }
        hasAnswered = true;
        return answer;
    }

    private ClusterError dropped(Address address, IOException error) {
        ClusterConnection connection = (ClusterConnection) connections.remove(address);
        if (connection != null) {
            connection.close();
        }
        return new ClusterError(ClusterError.NETWORK, error.getMessage());
    }

    /** Calls until there is no error that another attempt may end, for a while. */
    Object retrying(Callable call) throws IOException {
        long began = System.nanoTime();
        while (true) {
            ClusterError problem;
            try {
                return call.call();
            } catch (Exception error) {
                problem = ClusterError.of(error);
            }
            if (!problem.isRetriable() || deadline.hasPassed()
                || (System.nanoTime() - began) / 1_000_000 > patienceMs(problem)) {
                throw problem;
            }
            if (problem.code == ClusterError.CONCURRENT_TRANSACTIONS) {
                deadline.pause(CONCURRENT_BACKOFF_MS);
                continue;
            }
            coordinators.clear();
            // The leader may have changed. Requests whose answers are missing leave no connection usable.
            leaders = new TreeMap();
            for (Iterator i = connections.values().iterator(); i.hasNext();) {
                ((ClusterConnection) i.next()).close();
            }
            connections.clear();
            deadline.pause(BACKOFF_MS);
        }
    }

    private long patienceMs(ClusterError problem) {
        if (!hasAnswered) {
            return FIRST_CONTACT_MS;
        }
        return problem.code == ClusterError.UNKNOWN_TOPIC_OR_PARTITION ? UNKNOWN_MS : TIMEOUT_MS;
    }

    /** What to do with an answer. It raises ClusterError for an error in it. */
    interface Answered {
        void take(AnswerReader answer) throws IOException;
    }

    /** Requests to brokers whose answers are awaited together; no other request is sent meanwhile. One thread. */
    final class Exchange {
        private final List addresses = new ArrayList();
        private final List handlers = new ArrayList();

        void send(Address address, int apiKey, int version, RequestWriter body, Answered handler)
            throws IOException {
            ClusterClient.this.send(address, apiKey, version, body);
            addresses.add(address);
            handlers.add(handler);
        }

        /** Takes all answers in the order of the requests. Raises the first error in one of them. */
        void finish() throws IOException {
            ClusterError problem = null;
            for (int i = 0; i < addresses.size(); i++) {
                AnswerReader answer = receive((Address) addresses.get(i));
                try {
                    ((Answered) handlers.get(i)).take(answer);
                } catch (ClusterError error) {
                    problem = problem == null ? error : problem;
                }
            }
            if (problem != null) {
                throw problem;
            }
        }
    }

    /** The address of a partition's leader, null if it has none, and its leader epoch. Immutable. */
    static final class Leader {
        final Address address;
        final int epoch;

        Leader(Address address, int epoch) {
            this.address = address;
            this.epoch = epoch;
        }
    }

    /** The address of a broker. Immutable. */
    static final class Address implements Serializable {
        private static final long serialVersionUID = 1;

        final String host;
        final int port;

        Address(String host, int port) {
            this.host = host;
            this.port = port;
        }

        /** Returns the addresses in an option. Raises ReadException. */
        static List all(String servers) {
            List found = new ArrayList();
            String[] given = servers.split(",");
            for (int i = 0; i < given.length; i++) {
                String text = given[i].trim();
                int colon = text.lastIndexOf(':');
                long port = colon <= 0 ? -1 : GivenOptions.number(text.substring(colon + 1));
                if (port < 1 || port > 65535) {
                    throw new ReadException("kafka.bootstrap.servers: '" + text + "' is not host:port");
                }
                String host = text.substring(0, colon);
                boolean isQuoted = host.startsWith("[") && host.endsWith("]");
                found.add(new Address(isQuoted ? host.substring(1, host.length() - 1) : host, (int) port));
            }
            return found;
        }

        public boolean equals(Object other) {
            return other instanceof Address && ((Address) other).port == port && ((Address) other).host.equals(host);
        }

        public int hashCode() {
            return host.hashCode() * 31 + port;
        }

        public String toString() {
            return (host.indexOf(':') >= 0 ? "[" + host + "]" : host) + ":" + port;
        }
    }
}
