package org.kreplica.spark;

import java.io.IOException;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.Platform;
import org.kreplica.spark.GivenOptions.OptionTable;
import org.kreplica.spark.KreplicaScan.KreplicaScanBuilder;
import org.kreplica.spark.ReadException.NotForThisReader;
import scala.Some;

/** Logs as a table: reads directories here, and passes everything else to Python. */
final class KreplicaTable implements SupportsRead, SupportsWrite {
    private final StructType schema;
    private final Map given;
    private final PythonSource python;

    KreplicaTable(StructType schema, Map given, PythonSource python) {
        this.schema = schema;
        this.given = given;
        this.python = python;
    }

    public String name() {
        return KreplicaProvider.FORMAT;
    }

    public Column[] columns() {
        StructField[] fields = schema.fields();
        Column[] columns = new Column[fields.length];
        for (int i = 0; i < fields.length; i++) {
            columns[i] = Column.create(fields[i].name(), fields[i].dataType(), fields[i].nullable());
        }
        return columns;
    }

    public Set capabilities() {
        return EnumSet.of(TableCapability.BATCH_READ, TableCapability.BATCH_WRITE, TableCapability.MICRO_BATCH_READ,
            TableCapability.STREAMING_WRITE, TableCapability.TRUNCATE);
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        Map all = new HashMap(given);
        all.putAll(options.asCaseSensitiveMap());
        String reason = ReaderChoice.reasonForPython(all);
        if (reason == null) {
            Columns.check(schema);
            return new KreplicaScanBuilder(all, schema);
        }
        return ((SupportsRead) python.table(schema, given, schema, options)).newScanBuilder(options);
    }

    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        Map all = new HashMap(given);
        all.putAll(info.options().asCaseSensitiveMap());
        OptionTable.check(new GivenOptions(all), OptionTable.WRITE);
        return ((SupportsWrite) python.table(schema, given, info.schema(), info.options())).newWriteBuilder(info);
    }

    /** The data source in Python, which the session has registered under its own name. */
    static final class PythonSource {
        /** The name under which spark_connector registers it. */
        static final String FORMAT = "kreplica-python";

        /** Returns the table for these options. Raises ReadException if workers lack the packages. */
        Table table(StructType schema, Map given, StructType asked, CaseInsensitiveStringMap options) {
            PythonDataSourceV2 source = new PythonDataSourceV2();
            source.setShortName(FORMAT);
            try {
                Table table = source.getTable(schema, new Transform[0], given);
                // Spark would do this later, and then skip it.
                source.getOrCreateDataSourceInPython(FORMAT, options, new Some(asked));
                return table;
            } catch (Exception error) {
                String text = String.valueOf(error.getMessage());
                if (isOfAnotherPython(text)) {
                    throw new ReadException("Spark's workers run another Python than the driver: set PYSPARK_PYTHON to "
                        + System.getProperty("kreplica.driver.python", "the driver's") + "\n" + text, error);
                }
                // As it is: a method of Scala's declares none, and raises any.
                Platform.throwException(error);
                return null;
            }
        }

        private static boolean isOfAnotherPython(String text) {
            String[] signs =
                {"ModuleNotFoundError", "No module named", "PYTHON_VERSION_MISMATCH", "Cannot run program"};
            for (int i = 0; i < signs.length; i++) {
                if (text.contains(signs[i])) {
                    return true;
                }
            }
            return false;
        }
    }
}

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
            KreplicaProvider.LOGGER.info("format kreplica: the JVM reader reads {}", options.where());
            return null;
        }
        if (reader.equals(JVM)) {
            throw new ReadException("reader=jvm: " + reason);
        }
        checkForPython(given, options);
        KreplicaProvider.LOGGER.info("format kreplica: the Python reader reads, because {}", reason);
        return reason;
    }

    /** Finds mistakes before Python does, because Spark hides Python's message behind a traceback. */
    private static void checkForPython(Map given, GivenOptions options) {
        ReadOptions.checkForPython(given);
        if (options.has("path") || options.has("paths")) {
            try {
                PartitionDirectories.find(ReadOptions.places(given).paths);
            } catch (IOException error) {
                KreplicaProvider.LOGGER.debug("left to Python: {}", error.toString());
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
