package org.kreplica.spark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;

/**
 * The options of a read from directories, with the names and meanings of the Python reader
 * (spark_connector/options.py). Limits count records, -1: no limit. Immutable.
 */
final class ReadOptions {
    private static final long DEFAULT_MAX_TRIGGER_DELAY_MS = 15 * 60_000;
    private static final String SERVERS = "kafka.bootstrap.servers";

    final List paths;
    final Subscription subscription;
    final Position starting;
    final Position ending;
    final boolean noMatchIsLatest;
    final long minPartitions;
    final long maxRecordsPerPartition;
    final long maxOffsetsPerTrigger;
    final long minOffsetsPerTrigger;
    final long maxTriggerDelayMs;
    final boolean failOnDataLoss;
    final boolean skipDamaged;
    final boolean committed;

    /** Parses the options of any read, when only its partitions matter. Raises ReadException. */
    static ReadOptions places(Map given) {
        Map some = new HashMap();
        String[] names = {"path", "paths", "subscribe", "subscribePattern", "assign"};
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
        Map some = new HashMap();
        for (Iterator i = options.names(); i.hasNext();) {
            String name = (String) i.next();
            some.put(name, name.equals("subscribepattern") ? "." : options.text(name));
        }
        if (OptionTable.isOfCluster(options)) {
            OptionTable.check(options, streaming ? OptionTable.STREAM : OptionTable.BATCH);
            some.remove(SERVERS);
            some.remove("kafka.security.protocol");
            some.put("path", "/");
        }
        new ReadOptions(some, streaming);
    }

    /** Parses the options. Raises ReadException, which names the wrong one. */
    ReadOptions(Map given, boolean streaming) {
        GivenOptions options = new GivenOptions(given);
        paths = paths(options);
        if (options.has(SERVERS)) {
            throw new ReadException(
                "path and kafka.bootstrap.servers: either directories or a running cluster, not both");
        }
        OptionTable.check(options, streaming ? OptionTable.STREAM : OptionTable.BATCH);
        starting = Position.of(options, "starting", streaming ? Position.LATEST : Position.EARLIEST);
        ending = Position.of(options, "ending", Position.LATEST);
        if (!streaming) {
            starting.checkBatch(true);
            ending.checkBatch(false);
        }
        String[] strategies = {"error", "latest"};
        noMatchIsLatest = options.choice("startingOffsetsByTimestampStrategy", strategies).equals("latest");
        subscription = Subscription.of(options);
        minPartitions = options.count("minPartitions");
        maxRecordsPerPartition = options.count("maxRecordsPerPartition");
        maxOffsetsPerTrigger = options.count("maxOffsetsPerTrigger");
        minOffsetsPerTrigger = options.count("minOffsetsPerTrigger");
        maxTriggerDelayMs = options.durationMs("maxTriggerDelay", DEFAULT_MAX_TRIGGER_DELAY_MS);
        failOnDataLoss = options.isTrue("failOnDataLoss", true);
        skipDamaged = options.isTrue("skipDamaged", false);
        String[] levels = {"read_uncommitted", "read_committed"};
        committed = options.choice("kafka.isolation.level", levels).equals("read_committed");
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
}
