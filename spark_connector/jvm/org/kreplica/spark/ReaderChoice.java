package org.kreplica.spark;

import java.io.IOException;
import java.util.Iterator;
import java.util.Map;

/** Chooses the reader for a read, by its options and by the files in the directories. */
final class ReaderChoice {
    private static final String AUTO = "auto";
    private static final String JVM = "jvm";
    private static final String PYTHON = "python";

    private ReaderChoice() {
    }

    /** Returns why the Python reader must read, null if this one can. Raises ReadException if reader=jvm cannot. */
    static String reasonForPython(Map given) {
        GivenOptions options = new GivenOptions(given);
        String reader = options.choice("reader", new String[] {AUTO, JVM, PYTHON});
        if (reader.equals(PYTHON)) {
            checkForPython(given, options);
            return "reader=python";
        }
        String reason = reason(given, options);
        if (reason == null) {
            Logs.logger.info("format kreplica: the JVM reader reads {}", new LazyOptions(given).where());
            return null;
        }
        if (reader.equals(JVM)) {
            throw new ReadException("reader=jvm: " + reason);
        }
        checkForPython(given, options);
        Logs.logger.info("format kreplica: the Python reader reads, because {}", reason);
        return reason;
    }

    /** Finds mistakes before Python does, because Spark hides Python's message behind a traceback. */
    private static void checkForPython(Map given, GivenOptions options) {
        ReadOptions.checkForPython(given);
        if (options.has("path") || options.has("paths")) {
            try {
                PartitionDirectories.find(ReadOptions.places(given).paths);
            } catch (IOException error) {
                Logs.logger.debug("left to Python: {}", error.toString());
            }
        }
    }

    private static String reason(Map given, GivenOptions options) {
        if (options.has("kafka.bootstrap.servers") && !options.has("path") && !options.has("paths")) {
            return "only the Python reader reads a running cluster";
        }
        try {
            // The plan finds mistakes in options that only a stream or only a batch has.
            Planner planner = new Planner(ReadOptions.places(given));
            for (Iterator i = planner.subscribed(false).iterator(); i.hasNext();) {
                planner.log((TopicPartition) i.next());
            }
            return null;
        } catch (NotForThisReader error) {
            return error.getMessage();
        } catch (IOException error) {
            throw ReadException.of(error);
        }
    }
}
