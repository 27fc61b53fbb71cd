package org.kreplica.spark;

import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.attribute.FileTime;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.SortedMap;
import java.util.TreeMap;
import org.kreplica.spark.LogEnd.Bounds;
import org.kreplica.spark.ReaderFactory.ReadSettings;

/**
 * What a stream knows of the logs, so that it reads again only what has changed since. A cluster is asked each time.
 *
 * A directory's time of change shows new partitions and segments. Within a directory that did not change, a writer of
 * kreplica's moves only what it publishes, and Kafka the end of its last segment and its checkpoints. A time is
 * trusted once it is older than the clock's resolution, because a later change could bear the same time. One thread.
 */
final class KnownLogs {
    private static final long SETTLED_MS = 1000;
    private static final int LOOKS = 5;
    private static final String[] OF_KAFKA = {
        ".lock", ".kafka_cleanshutdown", "recovery-point-offset-checkpoint", "replication-offset-checkpoint",
        "log-start-offset-checkpoint", "cleaner-offset-checkpoint",
    };

    private final ReadOptions options;
    private final ReadSettings settings;
    /** Null for directories. */
    private final ClusterClient client;
    private PartitionDirectories directories;
    private List times;
    /** A KnownLog by directory. */
    private Map logs = new HashMap();

    KnownLogs(ReadOptions options) {
        this.options = options;
        settings = new ReadSettings(options);
        client = options.servers == null ? null : new ClusterClient(options.servers);
    }

    /** Returns a planner for the partitions as they are now. */
    Planner planner() throws IOException {
        return new Planner(options, client != null ? (LogSource) new ClusterLogs(options, client)
            : new DirectoryLogs(options, directories()));
    }

    void close() {
        if (client != null) {
            client.close();
        }
    }

    /** Returns the partitions' directories as they are now. */
    private PartitionDirectories directories() throws IOException {
        if (times != null && times.equals(directories.times())) {
            return directories;
        }
        long now = System.currentTimeMillis();
        directories = PartitionDirectories.find(options.paths);
        times = directories.times();
        for (Iterator i = times == null ? new ArrayList().iterator() : times.iterator(); i.hasNext();) {
            if (!isSettled((FileTime) i.next(), now)) {
                times = null;
                break;
            }
        }
        return directories;
    }

    /** Returns the bounds by partition of those that are subscribed and exist. */
    SortedMap bounds() throws IOException {
        for (int attempt = 1; true; attempt++) {
            try {
                return current();
            } catch (ReadException error) {
                // A partition may be removed after it was listed.
                if (attempt == LOOKS || !hasChanged()) {
                    throw error;
                }
            }
        }
    }

    private boolean hasChanged() throws IOException {
        if (directories == null) {
            return false;
        }
        Object before = directories.partitions();
        times = null;
        return !directories().partitions().equals(before);
    }

    private SortedMap current() throws IOException {
        Planner planner = planner();
        if (client != null) {
            return planner.bounds(planner.subscribed(false));
        }
        SortedMap found = new TreeMap();
        Map still = new HashMap();
        Map parents = new HashMap();
        for (Iterator i = planner.subscribed(false).iterator(); i.hasNext();) {
            TopicPartition at = (TopicPartition) i.next();
            String directory = directories.directory(at);
            KnownLog now = new KnownLog(at, directory, (KnownLog) logs.get(directory), parents, settings);
            if (now.isSettled) {
                still.put(directory, now);
            }
            found.put(at, now.bounds);
        }
        logs = still;
        return found;
    }

    private static boolean isSettled(FileTime time, long now) {
        return time.toMillis() < now - SETTLED_MS;
    }

    /** A log's state when it was looked at, and the bounds found then. Immutable. */
    static final class KnownLog {
        private final FileTime changed;
        /** Null for a Kafka log. */
        final LogStanding standing;
        private final String ofKafka;
        /** Whether the time of change is old enough to be trusted. */
        final boolean isSettled;
        final Bounds bounds;

        /**
         * Looks at a log. `before`: what is known of it, or null; `parents`: what was seen beside other logs, by
         * directory.
         */
        KnownLog(TopicPartition at, String directory, KnownLog before, Map parents, ReadSettings settings)
            throws IOException {
            long now = System.currentTimeMillis();
            changed = Files.getLastModifiedTime(Paths.get(directory, new String[0]), new LinkOption[0]);
            isSettled = KnownLogs.isSettled(changed, now);
            standing = before != null && before.standing == null && changed.equals(before.changed)
                ? null : LogStanding.read(directory);
            ofKafka = standing == null ? ofKafka(directory, parents) : "";
            if (!isSameAs(before)) {
                bounds = LogEnd.of(PartitionLog.open(at, directory), settings);
            } else {
                bounds = standing == null ? before.bounds
                    : LogEnd.published(standing, before.bounds.start, settings);
            }
        }

        private static String ofKafka(String directory, Map parents) throws IOException {
            String parent = new File(directory).getParent();
            if (!parents.containsKey(parent)) {
                parents.put(parent, beside(parent));
            }
            return parents.get(parent) + " " + lastSegment(directory);
        }

        /** Describes the files that bound Kafka's logs, and whether a node is running there. */
        private static String beside(String parent) throws IOException {
            StringBuilder found = new StringBuilder(String.valueOf(PartitionLog.isTaken(parent)));
            for (int i = 0; i < OF_KAFKA.length; i++) {
                found.append(' ').append(file(Paths.get(parent, new String[] {OF_KAFKA[i]})));
            }
            return found.toString();
        }

        private static String lastSegment(String directory) throws IOException {
            String[] names = PartitionDirectories.Listing.names(directory);
            String last = "";
            for (int i = 0; i < names.length; i++) {
                last = names[i].matches("\\d{20}\\.log") ? names[i] : last;
            }
            return last + " " + file(Paths.get(directory, new String[] {last}));
        }

        private static String file(Path path) throws IOException {
            try {
                // Kafka writes a new file and renames it, so the key is another one after each change.
                return Files.size(path) + "/" + Files.getLastModifiedTime(path, new LinkOption[0]) + "/"
                    + Files.getAttribute(path, "unix:ino", new LinkOption[0]);
            } catch (NoSuchFileException error) {
                return "none";
            }
        }

        private boolean isSameAs(KnownLog before) {
            return before != null && changed.equals(before.changed) && ofKafka.equals(before.ofKafka)
                && (standing == null ? before.standing == null : standing.continues(before.standing));
        }
    }
}
