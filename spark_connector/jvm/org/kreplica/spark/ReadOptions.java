package org.kreplica.spark;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.SortedMap;
import java.util.SortedSet;
import java.util.TreeSet;
import java.util.regex.Pattern;
import java.util.regex.PatternSyntaxException;
import org.kreplica.spark.GivenOptions.OptionTable;

/**
 * The options of a read, with the names and meanings of the Python reader
 * (spark_connector/options.py). Limits count records, -1: no limit. Immutable.
 */
final class ReadOptions {
    private static final long DEFAULT_MAX_TRIGGER_DELAY_MS = 15 * 60_000;
    private static final String SERVERS = "kafka.bootstrap.servers";
    /** What divides or delays batches; in real-time mode a batch is divided by its time, and has a task a partition. */
    private static final String[] NOT_IN_REAL_TIME = {
        "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions", "maxRecordsPerPartition",
        "maxBytesPerPartition",
    };

    final List paths;
    /** The addresses of a cluster; null for directories. */
    final String servers;
    final Subscription subscription;
    final Position starting;
    final Position ending;
    final boolean noMatchIsLatest;
    final long minPartitions;
    final long maxRecordsPerPartition;
    final long maxBytesPerPartition;
    final long maxOffsetsPerTrigger;
    final long minOffsetsPerTrigger;
    final long maxTriggerDelayMs;
    final boolean failOnDataLoss;
    final boolean skipDamaged;
    final boolean committed;
    /** An option that real-time mode refuses; null if none was given. */
    private final String notInRealTime;

    /** Parses the options of any read, when only its partitions matter. Raises ReadException. */
    static ReadOptions places(Map given) {
        Map some = new HashMap();
        String[] names = {"path", "paths", SERVERS, "subscribe", "subscribePattern", "assign"};
        GivenOptions options = new GivenOptions(given);
        for (int i = 0; i < names.length; i++) {
            if (options.has(names[i])) {
                some.put(names[i], options.text(names[i]));
            }
        }
        return new ReadOptions(some, true);
    }

    /**
     * Raises ReadException for options that are wrong for every read, of a batch or a stream, of directories or a
     * cluster. It does not check patterns, which are Python's.
     */
    static void checkForPython(Map given) {
        try {
            checkForPython(given, true);
        } catch (ReadException error) {
            checkForPython(given, false);
        }
    }

    private static void checkForPython(Map given, boolean streaming) {
        GivenOptions options = new GivenOptions(given);
        boolean isOfCluster = OptionTable.isOfCluster(options);
        Map some = new HashMap();
        for (Iterator i = options.names(); i.hasNext();) {
            String name = (String) i.next();
            if (!isOfCluster || !isOfConnection(name)) {
                some.put(name, name.equals("subscribepattern") ? "." : options.text(name));
            }
        }
        if (isOfCluster) {
            OptionTable.check(options, streaming ? OptionTable.STREAM : OptionTable.BATCH);
            some.put("path", "/");
        }
        new ReadOptions(some, streaming);
    }

    /** Whether the option says how to connect to a cluster, which is Python's to check. */
    static boolean isOfConnection(String name) {
        return name.equals(SERVERS) || name.startsWith("kafka.security.") || name.startsWith("kafka.ssl.")
            || name.startsWith("kafka.sasl.");
    }

    /** Parses the options. Raises ReadException, which names the wrong one. */
    ReadOptions(Map given, boolean streaming) {
        GivenOptions options = new GivenOptions(given);
        servers = options.text(SERVERS);
        if (servers != null && (options.has("path") || options.has("paths"))) {
            throw new ReadException(
                "path and kafka.bootstrap.servers: either directories or a running cluster, not both");
        }
        paths = servers == null ? paths(options) : Collections.EMPTY_LIST;
        OptionTable.check(options, streaming ? OptionTable.STREAM : OptionTable.BATCH);
        starting = Position.of(options, "starting", streaming ? Position.LATEST : Position.EARLIEST);
        ending = Position.of(options, "ending", Position.LATEST);
        if (!streaming) {
            starting.checkBatch(true);
            ending.checkBatch(false);
        }
        String[] strategies = {"error", "latest"};
        noMatchIsLatest = options.choice("startingOffsetsByTimestampStrategy", strategies).equals("latest");
        subscription = Subscription.of(options, servers == null);
        minPartitions = options.count("minPartitions");
        maxRecordsPerPartition = options.count("maxRecordsPerPartition");
        maxBytesPerPartition = options.bytes("maxBytesPerPartition");
        maxOffsetsPerTrigger = options.count("maxOffsetsPerTrigger");
        minOffsetsPerTrigger = options.count("minOffsetsPerTrigger");
        maxTriggerDelayMs = options.durationMs("maxTriggerDelay", DEFAULT_MAX_TRIGGER_DELAY_MS);
        failOnDataLoss = options.isTrue("failOnDataLoss", true);
        skipDamaged = options.isTrue("skipDamaged", false);
        String[] levels = {"read_uncommitted", "read_committed"};
        committed = options.choice("kafka.isolation.level", levels).equals("read_committed");
        String refused = null;
        for (int i = 0; i < NOT_IN_REAL_TIME.length; i++) {
            refused = options.has(NOT_IN_REAL_TIME[i]) ? NOT_IN_REAL_TIME[i] : refused;
        }
        notInRealTime = refused;
    }

    /** Raises ReadException for an option that has no effect with trigger(realTime=...). */
    void requireRealTime() {
        if (notInRealTime != null) {
            throw new ReadException(notInRealTime + ": has no effect with trigger(realTime=...), where one task reads a "
                + "partition for as long as a batch lasts; remove the option");
        }
    }

    /** Returns the directories and what is read of them, for a person. */
    String where() {
        return (servers == null ? String.join(", ", paths) : servers) + subscription;
    }

    /** Returns the paths from `path`, or from `paths`, a JSON array that load([...]) creates. */
    private static List paths(GivenOptions options) {
        String one = options.text("path");
        String several = options.text("paths");
        if (one != null && several != null) {
            throw new ReadException("path and paths: name one of them");
        }
        if (one == null && several == null) {
            throw new ReadException(
                "name path, a directory of logs, or kafka.bootstrap.servers, a running cluster");
        }
        List found = one != null ? Arrays.asList(new String[] {one}) : Json.texts("paths", several);
        List local = new ArrayList();
        for (Iterator i = found.iterator(); i.hasNext();) {
            local.add(local((String) i.next()));
        }
        return local;
    }

    private static String local(String path) {
        int colon = path.indexOf(':');
        String scheme = colon < 0 ? "/" : path.substring(0, colon);
        if (scheme.indexOf('/') >= 0) {
            return path;
        }
        if (!scheme.equalsIgnoreCase("file")) {
            throw new ReadException("path: '" + path + "' is not on this machine; logs are read as local files");
        }
        return "/" + path.substring(colon + 1).replaceAll("^/+", "");
    }

    /**
     * A requested start or end: a timestamp for all partitions, else timestamps by partition, else offsets by
     * partition, else EARLIEST or LATEST. Immutable.
     */
    static final class Position {
        static final long EARLIEST = -2;
        static final long LATEST = -1;

        /** The option that sets it. */
        final String option;
        final long otherwise;
        final long timestamp;
        final SortedMap timestamps;
        final SortedMap offsets;

        private Position(String option, long otherwise, long timestamp, SortedMap timestamps, SortedMap offsets) {
            this.option = option;
            this.otherwise = otherwise;
            this.timestamp = timestamp;
            this.timestamps = timestamps;
            this.offsets = offsets;
        }

        /** Parses a position; `which` is starting or ending. The first option that is set counts. */
        static Position of(GivenOptions options, String which, long otherwise) {
            String option = which + "Timestamp";
            String text = options.text(option);
            if (text != null) {
                long timestamp = GivenOptions.number(text);
                if (timestamp < 0) {
                    throw new ReadException(option + ": '" + text + "' is not a time in ms since 1970");
                }
                return new Position(option, otherwise, timestamp, null, null);
            }
            option = which + "OffsetsByTimestamp";
            text = options.text(option);
            if (text != null) {
                return new Position(option, otherwise, -1, Json.numbers(option, text, "timestamp", 0), null);
            }
            option = which + "Offsets";
            text = options.text(option);
            if (text == null) {
                return new Position(option, otherwise, -1, null, null);
            }
            if (text.equalsIgnoreCase("earliest") || text.equalsIgnoreCase("latest")) {
                return new Position(option, text.equalsIgnoreCase("earliest") ? EARLIEST : LATEST, -1, null, null);
            }
            return new Position(option, otherwise, -1, null, Json.numbers(option, text, "offset", EARLIEST));
        }

        /** Returns the time for a partition, if this position has times. */
        long time(TopicPartition at) {
            return timestamp >= 0 ? timestamp : ((Long) timestamps.get(at)).longValue();
        }

        /** Raises ReadException if this position makes a batch empty. */
        void checkBatch(boolean isStart) {
            long wrong = isStart ? LATEST : EARLIEST;
            if (otherwise == wrong) {
                throw new ReadException(option + (isStart ? ": a batch that begins at the latest offset would be empty"
                    : ": a batch that ends at the earliest offset would be empty"));
            }
            if (offsets == null) {
                return;
            }
            for (Iterator i = offsets.entrySet().iterator(); i.hasNext();) {
                Map.Entry entry = (Map.Entry) i.next();
                if (((Long) entry.getValue()).longValue() == wrong) {
                    throw new ReadException(option + ": " + entry.getKey() + (isStart
                        ? " cannot begin at latest (-1) in a batch" : " cannot end at earliest (-2) in a batch"));
                }
            }
        }
    }
}

/** The partitions to read: topics by name, topics by a pattern, listed partitions, or all. Immutable. */
final class Subscription {
    private static final String[] OPTIONS = {"subscribe", "subscribePattern", "assign"};
    private static final int LISTED = 20;

    private final Set topics;
    private final Pattern pattern;
    private final SortedMap assigned;

    private Subscription(Set topics, Pattern pattern, SortedMap assigned) {
        this.topics = topics;
        this.pattern = pattern;
        this.assigned = assigned;
    }

    /** `mayBeAll`: whether the options may name none. */
    static Subscription of(GivenOptions options, boolean mayBeAll) {
        String given = null;
        for (int i = 0; i < OPTIONS.length; i++) {
            if (options.has(OPTIONS[i])) {
                if (given != null) {
                    throw new ReadException("name exactly one of the options subscribe, subscribePattern and assign, "
                        + "not " + given + " and " + OPTIONS[i]);
                }
                given = OPTIONS[i];
            }
        }
        if (given == null) {
            if (!mayBeAll) {
                throw new ReadException("name exactly one of the options subscribe, subscribePattern and assign");
            }
            return new Subscription(null, null, null);
        }
        String text = options.text(given);
        if (given.equals("assign")) {
            return new Subscription(null, null, Json.assignment(given, text));
        }
        return given.equals("subscribe") ? byName(text) : byPattern(text);
    }

    public String toString() {
        if (topics != null) {
            return " [subscribe " + String.join(", ", topics) + "]";
        }
        if (pattern != null) {
            return " [subscribePattern " + pattern + "]";
        }
        return assigned == null ? "" : " [assign " + assigned.keySet().toString().replaceAll("[\\[\\]]", "") + "]";
    }

    private static Subscription byName(String text) {
        Set topics = new LinkedHashSet();
        String[] names = text.split(",");
        for (int i = 0; i < names.length; i++) {
            if (!names[i].trim().isEmpty()) {
                topics.add(names[i].trim());
            }
        }
        if (topics.isEmpty()) {
            throw new ReadException("subscribe: names no topic");
        }
        return new Subscription(topics, null, null);
    }

    private static Subscription byPattern(String text) {
        try {
            return new Subscription(null, Pattern.compile(text), null);
        } catch (PatternSyntaxException error) {
            throw new ReadException("subscribePattern: '" + text + "' is not a regular expression: "
                + error.getDescription());
        }
    }

    /** Returns the subscribed ones of `known`, sorted. Raises ReadException if a named one does not exist. */
    SortedSet of(LogSource known, boolean allThere) throws IOException {
        SortedSet found = new TreeSet();
        for (Iterator i = known.partitions().iterator(); i.hasNext();) {
            TopicPartition at = (TopicPartition) i.next();
            if (isWanted(at)) {
                found.add(at);
            }
        }
        if (allThere) {
            requireNamed(known);
        }
        return found;
    }

    private boolean isWanted(TopicPartition at) {
        if (assigned != null) {
            return assigned.containsKey(at);
        }
        if (topics != null) {
            return topics.contains(at.topic);
        }
        // Kafka's internal topics are read only if they are named.
        return !at.topic.startsWith("__") && (pattern == null || pattern.matcher(at.topic).find());
    }

    private void requireNamed(LogSource known) throws IOException {
        TreeSet there = new TreeSet();
        for (Iterator i = known.partitions().iterator(); i.hasNext();) {
            there.add(((TopicPartition) i.next()).topic);
        }
        for (Iterator i = topics == null ? new TreeSet().iterator() : topics.iterator(); i.hasNext();) {
            requireTopic("subscribe", (String) i.next(), there, known);
        }
        for (Iterator i = assigned == null ? new TreeSet().iterator() : assigned.keySet().iterator(); i.hasNext();) {
            TopicPartition at = (TopicPartition) i.next();
            requireTopic("assign", at.topic, there, known);
            if (!known.partitions().contains(at)) {
                throw new ReadException("assign: partition " + at + " does not exist in " + known);
            }
        }
    }

    private static void requireTopic(String option, String topic, TreeSet there, LogSource known) {
        if (!there.contains(topic)) {
            Object[] names = there.toArray();
            String listed = names.length == 0 ? "no topics"
                : Arrays.asList(Arrays.copyOf(names, Math.min(names.length, LISTED))).toString();
            throw new ReadException(option + ": topic '" + topic + "' does not exist in " + known + "; there are "
                + listed.replace("[", "").replace("]", ""));
        }
    }
}
