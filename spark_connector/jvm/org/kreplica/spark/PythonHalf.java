package org.kreplica.spark;

import java.io.File;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.io.Serializable;
import java.io.UncheckedIOException;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReportsSourceMetrics;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeMode;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.execution.datasources.DataSourceManager;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.Platform;
import scala.Some;

/**
 * The data source in Python, which reads what the JVM reader does not, and writes. Any thread.
 *
 * Spark shows an error of Python's as a traceback. What this class returns raises a ReadException instead, whose first
 * line is the error's message.
 */
public final class PythonHalf {
    /** The name under which spark_connector registers the source in a session. */
    static final String REGISTERED = "kreplica-python";
    /** The name under which Spark discovers the package pyspark_kreplica. */
    private static final String FOUND = KreplicaProvider.FORMAT;

    /** The name of the source that lists and creates the topics of a cluster. */
    private static final String TOPICS = "kreplica-topics";

    // Spark registers a Python source in one session; all sessions of this JVM use those registered last, by name.
    private static final Map SHARED = new ConcurrentHashMap();

    private PythonHalf() {
    }

    /** Makes a source available to all sessions of this JVM, also to those of `newSession`. */
    public static void share(String name, Object source) {
        SHARED.put(name, source);
    }

    static ScanBuilder newScanBuilder(StructType schema, Map given) {
        Map local = withWholePath(given);
        CaseInsensitiveStringMap options = new CaseInsensitiveStringMap(local);
        Table table = table(schema, local, schema, options);
        return (ScanBuilder) PlainErrors.in(((SupportsRead) table).newScanBuilder(options));
    }

    static WriteBuilder newWriteBuilder(StructType schema, Map given, LogicalWriteInfo info) {
        Map local = withWholePath(given);
        WriteInfo all = new WriteInfo(info, new CaseInsensitiveStringMap(local));
        Table table = table(schema, local, info.schema(), all.options());
        return (WriteBuilder) PlainErrors.in(((SupportsWrite) table).newWriteBuilder(all));
    }

    /**
     * Returns the options with a whole path in place of a relative one, which is relative to the driver's directory.
     * Python's workers may have other ones: those of Spark Connect are deleted with the session.
     */
    private static Map withWholePath(Map given) {
        Map found = new HashMap(given);
        for (Iterator i = given.keySet().iterator(); i.hasNext();) {
            String name = (String) i.next();
            String path = String.valueOf(given.get(name)).trim();
            if (name.equalsIgnoreCase("path") && !path.isEmpty() && !path.matches("[^/]*:.*")) {
                found.put(name, new File(path).getAbsolutePath());
            }
        }
        return found;
    }

    /** What Spark says of a write, with all options. Immutable. */
    private static final class WriteInfo implements LogicalWriteInfo {
        private final LogicalWriteInfo given;
        private final CaseInsensitiveStringMap options;

        WriteInfo(LogicalWriteInfo given, CaseInsensitiveStringMap options) {
            this.given = given;
            this.options = options;
        }

        public CaseInsensitiveStringMap options() {
            return options;
        }

        public String queryId() {
            return given.queryId();
        }

        public StructType schema() {
            return given.schema();
        }
    }

    /** Returns the table for these options. Raises ReadException if workers lack the packages. */
    private static Table table(StructType schema, Map given, StructType asked, CaseInsensitiveStringMap options) {
        PythonDataSourceV2 source = new PythonDataSourceV2();
        try {
            String name = name();
            source.setShortName(name);
            Table table = source.getTable(schema, new Transform[0], given);
            // Spark would do this later, and then skip it.
            source.getOrCreateDataSourceInPython(name, options, new Some(asked));
            return table;
        } catch (Exception error) {
            String text = String.valueOf(error.getMessage());
            if (isOfAnotherPython(text)) {
                throw new ReadException("Spark's workers run another Python than the driver: set PYSPARK_PYTHON to "
                    + System.getProperty("kreplica.driver.python", "the driver's") + "\n" + text, error);
            }
            // As it is: a method of Scala's declares none, and raises any.
            Platform.throwException(PythonError.plain(error));
            return null;
        }
    }

    /** Returns the name by which this session knows the source in Python. */
    private static String name() {
        if (isKnown(REGISTERED)) {
            return REGISTERED;
        }
        if (SparkSession.active().sessionState().dataSourceManager().dataSourceExists(FOUND)) {
            return FOUND;
        }
        throw new ReadException("this needs kreplica's Python package, which Spark's Python does not have: install "
            + "kreplica[spark] there, or call kreplica.spark.register(spark)");
    }

    /** Returns whether this session has the source, after registering it if another session has it. */
    private static boolean isKnown(String name) {
        DataSourceManager known = SparkSession.active().sessionState().dataSourceManager();
        UserDefinedPythonDataSource source = (UserDefinedPythonDataSource) SHARED.get(name);
        boolean exists = known.dataSourceExists(name);
        // A later registration may be for another Python.
        if (source != null && !(exists && known.lookupDataSource(name) == source)) {
            known.registerDataSource(name, source);
        }
        return source != null || exists;
    }

    // ---- the topics of a cluster -----------------------------------------------------------------------------------

    /** Returns a Row for each topic of the cluster that these options name: its name, and its number of partitions. */
    static List topics(Map options) {
        requireTopics();
        try {
            return SparkSession.active().read().format(TOPICS).options(connection(options)).load().collectAsList();
        } catch (Exception error) {
            Platform.throwException(PythonError.plain(error));
            return null;
        }
    }

    /** Creates a topic in the cluster; `replicationFactor` -1: the cluster's default. */
    static void createTopic(Map options, String topic, int partitions, int replicationFactor) {
        requireTopics();
        StructType schema = StructType.fromDDL("topic string, partitions int, replication_factor int");
        Object[] values = {topic, Integer.valueOf(partitions), Integer.valueOf(replicationFactor)};
        List rows = Collections.singletonList(RowFactory.create(values));
        try {
            SparkSession.active().createDataFrame(rows, schema).write().format(TOPICS).mode(SaveMode.Append)
                .options(connection(options)).save();
        } catch (Exception error) {
            Platform.throwException(PythonError.plain(error));
        }
    }

    private static void requireTopics() {
        if (!isKnown(TOPICS)) {
            throw new ReadException("a catalog of a cluster needs kreplica.spark.register(spark)");
        }
    }

    private static Map connection(Map options) {
        Map found = new HashMap();
        for (Iterator i = options.entrySet().iterator(); i.hasNext();) {
            Map.Entry each = (Map.Entry) i.next();
            if (ReadOptions.isOfConnection(((String) each.getKey()).toLowerCase(Locale.ROOT))) {
                found.put(each.getKey(), each.getValue());
            }
        }
        return found;
    }

    private static boolean isOfAnotherPython(String text) {
        String[] signs = {"ModuleNotFoundError", "No module named", "PYTHON_VERSION_MISMATCH", "Cannot run program"};
        for (int i = 0; i < signs.length; i++) {
            if (text.contains(signs[i])) {
                return true;
            }
        }
        return false;
    }

    /** An error of Python's: the end of its traceback says what happened. */
    static final class PythonError {
        private static final Pattern LAST_LINE =
            Pattern.compile("\n(?:spark_connector|kreplica|bindings)[\\w.]*\\.\\w+: (.+)\\z", Pattern.DOTALL);
        private static final String TRACEBACK = "Traceback (most recent call last):";

        private PythonError() {
        }

        /** Returns a ReadException with the message of an error of ours, and any other error unchanged. */
        static Throwable plain(Throwable error) {
            for (Throwable each = error; each != null; each = each.getCause()) {
                String message = message(String.valueOf(each.getMessage()));
                if (message != null) {
                    return new ReadException(message, error);
                }
            }
            return error;
        }

        /** Returns the message at the end of the last traceback in a text, null if it is not one of ours. */
        static String message(String text) {
            int begin = text.lastIndexOf(TRACEBACK);
            if (begin < 0) {
                return null;
            }
            // The lines of the traceback are indented. The message follows, and then Spark's own lines.
            String rest = text.substring(begin + TRACEBACK.length());
            int jvm = rest.indexOf("\n\tat ");
            Matcher found = LAST_LINE.matcher((jvm < 0 ? rest : rest.substring(0, jvm)).trim());
            return found.find() ? found.group(1).replaceFirst(" SQLSTATE: \\w{5}\\z", "").trim() : null;
        }
    }

    /** Passes every call on to an object of Spark's, and what it returns through the same. */
    static final class PlainErrors implements InvocationHandler, Serializable {
        private static final long serialVersionUID = 1;
        private static final Set PASSED_ON = new HashSet(Arrays.asList(new Object[] {
            Batch.class, BatchWrite.class, DataWriter.class, DataWriterFactory.class, MicroBatchStream.class,
            PartitionReaderFactory.class, Scan.class, ScanBuilder.class, StreamingDataWriterFactory.class,
            StreamingWrite.class, Write.class, WriteBuilder.class,
        }));

        private final Object inner;
        /** The latest offsets that a stream has reported, for its metrics. */
        private transient Offset latest;

        private PlainErrors(Object inner) {
            this.inner = inner;
        }

        static Object in(Object inner) {
            return proxy(inner, new PlainErrors(inner));
        }

        /** Returns an object with all interfaces of another, whose calls this handler gets. */
        static Object proxy(Object inner, InvocationHandler handler) {
            Class[] interfaces = interfaces(inner.getClass());
            if (inner instanceof MicroBatchStream && !(inner instanceof ReportsSourceMetrics)) {
                interfaces = with(interfaces, ReportsSourceMetrics.class);
            }
            if (inner instanceof MicroBatchStream && !(inner instanceof SupportsRealTimeMode)) {
                interfaces = with(interfaces, SupportsRealTimeMode.class);
            }
            if (inner instanceof ScanBuilder && !(inner instanceof SupportsPushDownRequiredColumns)) {
                interfaces = with(interfaces, SupportsPushDownRequiredColumns.class);
            }
            return Proxy.newProxyInstance(PlainErrors.class.getClassLoader(), interfaces, handler);
        }

        private static Class[] with(Class[] interfaces, Class another) {
            Class[] found = (Class[]) Arrays.copyOf(interfaces, interfaces.length + 1);
            found[interfaces.length] = another;
            return found;
        }

        private static Class[] interfaces(Class of) {
            Set found = new LinkedHashSet();
            for (Class each = of; each != null; each = each.getSuperclass()) {
                found.addAll(new ArrayList((List) Arrays.asList((Object[]) each.getInterfaces())));
            }
            return (Class[]) found.toArray(new Class[0]);
        }

        public Object invoke(Object proxy, Method method, Object[] arguments) throws Throwable {
            if (method.getName().equals("equals") && arguments != null && arguments.length == 1) {
                return Boolean.valueOf(inner.equals(plain(arguments[0])));
            }
            if (method.getDeclaringClass() == ReportsSourceMetrics.class && !(inner instanceof ReportsSourceMetrics)) {
                return KreplicaStream.lag(latest, (Optional) arguments[0]);
            }
            if (method.getDeclaringClass() == SupportsRealTimeMode.class && !(inner instanceof SupportsRealTimeMode)) {
                throw new ReadException("trigger(realTime=...): only the JVM reader has real-time mode, and the Python "
                    + "reader reads this stream: leave out reader=python; a cluster must not ask for encryption or a "
                    + "login; else use trigger(processingTime=...)");
            }
            if (method.getDeclaringClass() == SupportsPushDownRequiredColumns.class) {
                requireNoMetadata((StructType) arguments[0]);
                return null;
            }
            Object found;
            try {
                found = method.invoke(inner, arguments);
            } catch (InvocationTargetException error) {
                throw declared(method, PythonError.plain(error.getCause()));
            }
            if (method.getName().equals("reportLatestOffset")) {
                latest = (Offset) found;
            }
            if (found != null && PASSED_ON.contains(method.getReturnType())) {
                return found == inner ? proxy : in(found);
            }
            if (found instanceof PartitionReader) {
                return new PlainReader((PartitionReader) found);
            }
            return found;
        }

        private static void requireNoMetadata(StructType asked) {
            if (Arrays.asList(asked.fieldNames()).contains(MetadataVector.NAME)) {
                throw new ReadException(MetadataVector.NAME + ": only the JVM reader has this column");
            }
        }

        /** Returns an error that the method may raise; those written in Scala raise checked ones without a word. */
        private static Throwable declared(Method method, Throwable error) {
            boolean fits = error instanceof RuntimeException || error instanceof Error;
            Class[] kinds = method.getExceptionTypes();
            for (int i = 0; i < kinds.length; i++) {
                fits = fits || kinds[i].isInstance(error);
            }
            if (fits) {
                return error;
            }
            if (error instanceof InterruptedException) {
                // Spark quietly ends a query that is stopped this way.
                return new UncheckedIOException((IOException) new InterruptedIOException().initCause(error));
            }
            String text = String.valueOf(error.getMessage());
            return error instanceof IOException ? new UncheckedIOException(text, (IOException) error)
                : new ReadException(text, error);
        }

        private static Object plain(Object other) {
            if (other == null || !Proxy.isProxyClass(other.getClass())) {
                return other;
            }
            InvocationHandler handler = Proxy.getInvocationHandler(other);
            return handler instanceof PlainErrors ? ((PlainErrors) handler).inner : other;
        }
    }

    /** Reads rows from Python's reader; a class of its own, because it is called for each row. */
    private static final class PlainReader implements PartitionReader {
        private final PartitionReader inner;

        PlainReader(PartitionReader inner) {
            this.inner = inner;
        }

        public boolean next() throws IOException {
            try {
                return inner.next();
            } catch (RuntimeException error) {
                Platform.throwException(PythonError.plain(error));
                return false;
            }
        }

        public Object get() {
            return inner.get();
        }

        public CustomTaskMetric[] currentMetricsValues() {
            return inner.currentMetricsValues();
        }

        public void close() throws IOException {
            inner.close();
        }
    }
}
