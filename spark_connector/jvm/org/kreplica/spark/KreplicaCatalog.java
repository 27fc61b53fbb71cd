package org.kreplica.spark;

import java.io.File;
import java.io.IOException;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.FileAttribute;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.SortedMap;
import java.util.TreeMap;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TableInfo;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A catalog whose tables are topics: those of a log directory, or of a cluster.
 *
 * The settings spark.sql.catalog.NAME.* are options of format("kreplica") for all its tables. Topics are created, and
 * never removed or changed. Any thread.
 */
public final class KreplicaCatalog implements TableCatalog {
    private static final String PARTITIONS = "partitions";
    private static final String REPLICATION_FACTOR = "replication.factor";
    private static final String FIRST_SEGMENT = "00000000000000000000.log";
    private static final int MOST_PARTITIONS = 10_000;

    private String name;
    private Map options;

    public void initialize(String catalog, CaseInsensitiveStringMap settings) {
        name = catalog;
        options = new TreeMap(String.CASE_INSENSITIVE_ORDER);
        options.putAll(settings.asCaseSensitiveMap());
        GivenOptions given = new GivenOptions(options);
        if (given.has("path") == given.has("kafka.bootstrap.servers")) {
            throw new ReadException("set one of spark.sql.catalog." + name + ".path, a directory of logs, and spark.sql"
                + ".catalog." + name + ".kafka.bootstrap.servers, a cluster");
        }
    }

    public String name() {
        return name;
    }

    public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
        if (namespace.length > 0) {
            throw new NoSuchNamespaceException(namespace);
        }
        SortedMap topics = topics();
        Identifier[] found = new Identifier[topics.size()];
        int number = 0;
        for (Iterator i = topics.keySet().iterator(); i.hasNext();) {
            found[number++] = Identifier.of(namespace, (String) i.next());
        }
        return found;
    }

    public Table loadTable(Identifier identifier) throws NoSuchTableException {
        Integer partitions = identifier.namespace().length > 0 ? null : (Integer) topics().get(identifier.name());
        if (partitions == null) {
            throw new NoSuchTableException(identifier);
        }
        return table(identifier.name(), partitions.intValue());
    }

    private Table table(String topic, int partitions) {
        Map all = new HashMap(options);
        all.put("subscribe", topic);
        all.put("topic", topic);
        boolean withHeaders = new GivenOptions(options).isTrue("includeHeaders", true);
        all.put("includeHeaders", String.valueOf(withHeaders));
        Map shown = new TreeMap();
        shown.put(PARTITIONS, String.valueOf(partitions));
        shown.put(PROP_LOCATION, new GivenOptions(options).where());
        ValueFormat format = ValueFormat.of(all);
        StructType columns = Columns.schema(withHeaders);
        StructType schema = format == null ? columns : format.decoded(columns);
        return new KreplicaTable(name + "." + topic, schema, all, true, shown);
    }

    /** Creates a topic with the properties partitions and, in a cluster, replication.factor. */
    public Table createTable(Identifier identifier, TableInfo info)
        throws TableAlreadyExistsException, NoSuchNamespaceException {
        if (identifier.namespace().length > 0) {
            throw new NoSuchNamespaceException(identifier.namespace());
        }
        String topic = identifier.name();
        if (!topic.matches("[a-zA-Z0-9._-]{1,249}") || topic.matches("\\.{1,2}")) {
            throw new ReadException("'" + topic + "' is not a topic's name: use letters, digits, '.', '_' and '-'");
        }
        if (info.partitions().length > 0) {
            throw new ReadException("a topic has no columns to be partitioned by: set TBLPROPERTIES ('partitions' = 3)");
        }
        Columns.check(info.schema());
        int partitions = count(info.properties(), PARTITIONS, 1);
        if (topics().containsKey(topic)) {
            throw new TableAlreadyExistsException(identifier);
        }
        if (options.containsKey("path")) {
            createDirectories(topic, partitions);
        } else {
            PythonHalf.createTopic(options, topic, partitions, count(info.properties(), REPLICATION_FACTOR, -1));
        }
        return table(topic, partitions);
    }

    private static int count(Map properties, String name, int otherwise) {
        Object given = properties.get(name);
        long found = given == null ? otherwise : GivenOptions.number(String.valueOf(given).trim());
        if (given != null && (found < 1 || found > MOST_PARTITIONS)) {
            throw new ReadException(name + ": '" + given + "' is not a number from 1 to " + MOST_PARTITIONS);
        }
        return (int) found;
    }

    private void createDirectories(String topic, int partitions) {
        try {
            for (int i = 0; i < partitions; i++) {
                Path directory = new File((String) options.get("path"), topic + "-" + i).toPath();
                Files.createDirectories(directory, new FileAttribute[0]);
                try {
                    Files.createFile(directory.resolve(FIRST_SEGMENT), new FileAttribute[0]);
                } catch (FileAlreadyExistsException error) {
                    KreplicaProvider.LOGGER.debug("{} was created by another program", directory);
                }
            }
        } catch (IOException error) {
            throw ReadException.of(error);
        }
    }

    /** Returns the number of partitions of each topic. */
    private SortedMap topics() {
        SortedMap found = new TreeMap();
        if (!options.containsKey("path")) {
            List rows = PythonHalf.topics(options);
            for (Iterator i = rows.iterator(); i.hasNext();) {
                Row row = (Row) i.next();
                found.put(row.getString(0), Integer.valueOf(row.getInt(1)));
            }
            return found;
        }
        Map place = new HashMap();
        place.put("path", options.get("path"));
        try {
            if (PartitionDirectories.isEmpty((String) options.get("path"))) {
                return found;
            }
            PartitionDirectories directories = PartitionDirectories.find(ReadOptions.places(place).paths);
            for (Iterator i = directories.partitions().iterator(); i.hasNext();) {
                TopicPartition at = (TopicPartition) i.next();
                Integer known = (Integer) found.get(at.topic);
                int count = Math.max(known == null ? 0 : known.intValue(), at.partition + 1);
                found.put(at.topic, Integer.valueOf(count));
            }
        } catch (IOException error) {
            throw ReadException.of(error);
        }
        return found;
    }

    public Table alterTable(Identifier identifier, TableChange... changes) {
        throw new ReadException("a topic is not changed here: use kreplica topic, or Kafka's own tools");
    }

    public boolean dropTable(Identifier identifier) {
        throw new ReadException("records are not removed here: use kreplica topic, or Kafka's own tools");
    }

    public void renameTable(Identifier from, Identifier to) {
        throw new ReadException("a topic cannot be renamed");
    }
}
