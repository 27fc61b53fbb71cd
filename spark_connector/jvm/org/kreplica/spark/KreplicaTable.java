package org.kreplica.spark;

import java.io.IOException;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.connector.catalog.SupportsMetadataColumns;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.kreplica.spark.AppendWrite.AppendBuilder;
import org.kreplica.spark.DecodedScan.DecodedBuilder;
import org.kreplica.spark.GivenOptions.OptionTable;
import org.kreplica.spark.KreplicaScan.KreplicaScanBuilder;
import org.kreplica.spark.ReadException.NotForThisReader;

/** Logs as a table: reads here what this reader can, and passes everything else to Python. */
final class KreplicaTable implements SupportsRead, SupportsWrite, SupportsMetadataColumns {
    private final String name;
    private final StructType schema;
    private final Map given;
    private final boolean takesBatches;
    private final Map properties;
    /** A TransactionalSink by query, null for one that Python writes. */
    private final Map sinks = new HashMap();

    /** `takesBatches`: whether Spark writes batches by its newer interface. */
    KreplicaTable(String name, StructType schema, Map given, boolean takesBatches) {
        this(name, schema, given, takesBatches, Collections.emptyMap());
    }

    /** `properties`: what DESCRIBE shows. */
    KreplicaTable(String name, StructType schema, Map given, boolean takesBatches, Map properties) {
        this.name = name;
        this.schema = schema;
        this.given = given;
        this.takesBatches = takesBatches;
        this.properties = properties;
    }

    public String name() {
        return name;
    }

    public Map properties() {
        return properties;
    }

    /** What Spark shows of a sink in a query's progress. */
    public String toString() {
        return name + " " + new GivenOptions(given).where();
    }

    public Column[] columns() {
        StructField[] fields = schema.fields();
        Column[] columns = new Column[fields.length];
        for (int i = 0; i < fields.length; i++) {
            columns[i] = Column.create(fields[i].name(), fields[i].dataType(), fields[i].nullable());
        }
        return columns;
    }

    /** Returns the column _metadata, which the JVM reader has. */
    public MetadataColumn[] metadataColumns() {
        return new MetadataColumn[] {
            new MetadataColumn() {
                public String name() {
                    return MetadataVector.NAME;
                }

                public DataType dataType() {
                    return MetadataVector.type();
                }

                public String comment() {
                    return "what the log says of the batch in which the record is stored";
                }
            },
        };
    }

    public Set capabilities() {
        return new HashSet(Arrays.asList(new Object[] {
            takesBatches ? TableCapability.BATCH_WRITE : TableCapability.V1_BATCH_WRITE,
            TableCapability.ACCEPT_ANY_SCHEMA, TableCapability.BATCH_READ, TableCapability.MICRO_BATCH_READ,
            TableCapability.STREAMING_WRITE, TableCapability.TRUNCATE,
        }));
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        Map all = all(options, OptionTable.BATCH + "," + OptionTable.STREAM);
        ValueFormat format = ValueFormat.of(all);
        if (format == null) {
            return builder(all, schema);
        }
        Map rest = new TreeMap(String.CASE_INSENSITIVE_ORDER);
        for (Iterator i = all.entrySet().iterator(); i.hasNext();) {
            Map.Entry each = (Map.Entry) i.next();
            if (!ValueFormat.isOption((String) each.getKey())) {
                rest.put(each.getKey(), each.getValue());
            }
        }
        boolean withHeaders = Columns.index(schema, Columns.HEADERS) >= 0;
        StructType raw = Columns.schema(withHeaders);
        return new DecodedBuilder(builder(rest, raw), schema, format);
    }

    private static ScanBuilder builder(Map options, StructType schema) {
        String reason = ReaderChoice.reasonForPython(options);
        if (reason == null) {
            Columns.check(schema);
            return new KreplicaScanBuilder(options, schema);
        }
        return PythonHalf.newScanBuilder(schema, options);
    }

    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        Map all = all(info.options(), OptionTable.WRITE);
        OptionTable.check(new GivenOptions(all), OptionTable.WRITE);
        return new AppendBuilder(this, all, info);
    }

    /** Returns the sink of a query's batches, null if Python writes them. Spark asks once for each batch. */
    synchronized StreamingWrite sink(Map options, LogicalWriteInfo info) {
        if (!sinks.containsKey(info.queryId())) {
            GivenOptions of = new GivenOptions(options);
            String reason = TransactionalSink.reasonForPython(info, of);
            sinks.put(info.queryId(), reason == null ? new TransactionalSink(info, of) : null);
            KreplicaProvider.LOGGER.info("format kreplica: {}", reason == null ? "the JVM writes to " + of.where()
                : "the Python sink writes, because " + reason);
        }
        return (StreamingWrite) sinks.get(info.queryId());
    }

    StructType struct() {
        return schema;
    }

    /** Returns the options for one of these uses. Those that a catalog stores may be for another one. */
    private Map all(CaseInsensitiveStringMap options, String uses) {
        Map all = new TreeMap(String.CASE_INSENSITIVE_ORDER);
        for (Iterator i = given.entrySet().iterator(); i.hasNext();) {
            Map.Entry each = (Map.Entry) i.next();
            if (options.containsKey(each.getKey()) || OptionTable.isFor((String) each.getKey(), uses)) {
                all.put(each.getKey(), each.getValue());
            }
        }
        all.putAll(options.asCaseSensitiveMap());
        return all;
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
        if (OptionTable.isOfCluster(options)) {
            String protocol = options.text("kafka.security.protocol");
            boolean isPlain = protocol == null || protocol.equalsIgnoreCase("PLAINTEXT");
            return isPlain ? null : "only the Python reader reads a cluster by " + protocol;
        }
        try {
            // The plan finds mistakes in options that only a stream or only a batch has.
            Planner planner = new Planner(ReadOptions.places(given));
            for (Iterator i = planner.subscribed(false).iterator(); i.hasNext();) {
                planner.source.place((TopicPartition) i.next());
            }
            return null;
        } catch (NotForThisReader error) {
            return error.getMessage();
        } catch (IOException error) {
            throw ReadException.of(error);
        }
    }
}
