package org.kreplica.spark;

import java.io.IOException;
import java.util.Iterator;
import java.util.Map;

/** Which reader a read goes to, by its options and by what lies in the directories. */
final class ReaderChoice {
    private static final String AUTO = "auto";
    private static final String JVM = "jvm";
    private static final String PYTHON = "python";

    private ReaderChoice() {
    }

    /** Why the Python reader reads it; null: this one does. Raises ReadException where this one must and cannot. */
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
        Logs.logger.info("format kreplica: the Python reader reads it: {}", reason);
        return reason;
    }

    /** What can be found wrong here is: Spark tells what Python finds behind a traceback. */
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
            return "records of a running cluster come to the Python reader only";
        }
        try {
            // What is wrong with options that are a stream's or a batch's alone is found by its own plan.
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
