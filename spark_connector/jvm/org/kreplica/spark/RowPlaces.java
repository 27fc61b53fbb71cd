package org.kreplica.spark;

import java.io.Serializable;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/**
 * Finds the partition of each row for a sink, as Kafka's producer does: by the row, else by the hash of its key. Rows
 * without a key stay together, and go to the next partition after each batch. Immutable but for `turn`. One thread.
 */
final class RowPlaces implements Serializable {
    private static final long serialVersionUID = 1;
    private static final int MURMUR_SEED = 0x9747b28c;
    private static final int MURMUR = 0x5bd1e995;
    private static final String TEXT_OR_BYTES = "binary or string";

    private final String cluster;
    private final String topic;
    private final Map counts;
    private final int topicAt;
    private final int partitionAt;
    /** The number of the partition that rows without a key go to. */
    int turn;

    /** `topic`: that of all rows, null if each has its own. `partitions`: all of the cluster. */
    RowPlaces(StructType schema, String topic, Set partitions, String cluster) {
        this.topic = topic;
        this.cluster = cluster;
        topicAt = topic == null ? Columns.index(schema, Columns.TOPIC) : -1;
        partitionAt = Columns.index(schema, Columns.PARTITION);
        counts = new HashMap();
        for (Iterator i = partitions.iterator(); i.hasNext();) {
            TopicPartition at = (TopicPartition) i.next();
            Integer known = (Integer) counts.get(at.topic);
            counts.put(at.topic, Integer.valueOf(Math.max(known == null ? 0 : known.intValue(), at.partition + 1)));
        }
    }

    /** Checks the columns of a sink. Raises ReadException. */
    static void check(StructType schema, String topic) {
        StructField[] fields = schema.fields();
        for (int i = 0; i < fields.length; i++) {
            int column = Columns.number(fields[i].name());
            DataType type = fields[i].dataType();
            boolean isText = type.sameType(DataTypes.StringType);
            boolean fits = !Columns.isWritten(fields[i].name())
                || (column <= Columns.VALUE ? isText || type.sameType(DataTypes.BinaryType)
                    : Columns.fits(column, type));
            if (!fits) {
                throw new ReadException("column " + Columns.name(column) + " must be "
                    + (column <= Columns.VALUE ? TEXT_OR_BYTES : Columns.typeName(column)) + ", not "
                    + type.simpleString());
            }
        }
        if (Columns.index(schema, Columns.VALUE) < 0) {
            throw withoutValue(schema.fieldNames());
        }
        if (topic == null && Columns.index(schema, Columns.TOPIC) < 0) {
            throw new ReadException("set the option topic, or give each row a column topic");
        }
    }

    /** Returns the error of rows without a value. SQL names columns col1, col2, ... where a query does not. */
    static ReadException withoutValue(String[] names) {
        String hint = names.length > 0 && names[0].equals("col1")
            ? "; name them, as in INSERT INTO t (topic, value) VALUES ..." : "";
        return new ReadException("a sink needs a column value; the columns are " + String.join(", ", names) + hint);
    }

    /** Returns the partition of a row. Raises ReadException if it does not exist. */
    TopicPartition of(InternalRow row, byte[] key) {
        String name = topic;
        if (topicAt >= 0) {
            if (row.isNullAt(topicAt)) {
                throw new ReadException("a row has no topic: set the option topic, or fill the column");
            }
            name = row.getUTF8String(topicAt).toString();
        }
        Integer count = (Integer) counts.get(name);
        if (count == null) {
            throw new ReadException("topic '" + name + "' does not exist in " + cluster + "; create it first");
        }
        if (partitionAt >= 0 && !row.isNullAt(partitionAt)) {
            int partition = row.getInt(partitionAt);
            if (partition < 0) {
                throw new ReadException(name + ": " + partition + " is not a valid partition number");
            }
            if (partition >= count.intValue()) {
                throw new ReadException("partition " + name + "-" + partition + " does not exist in " + cluster);
            }
            return new TopicPartition(name, partition);
        }
        int partition = key == null ? turn & Integer.MAX_VALUE : murmur2(key) & Integer.MAX_VALUE;
        return new TopicPartition(name, partition % count.intValue());
    }

    /** Returns the hash by which Kafka's clients place keys: Austin Appleby's 32-bit MurmurHash2. */
    static int murmur2(byte[] key) {
        int hash = MURMUR_SEED ^ key.length;
        int whole = key.length & ~3;
        for (int i = 0; i < whole; i += 4) {
            int part = (key[i] & 0xff) | (key[i + 1] & 0xff) << 8 | (key[i + 2] & 0xff) << 16 | key[i + 3] << 24;
            part *= MURMUR;
            hash = hash * MURMUR ^ (part ^ part >>> 24) * MURMUR;
        }
        for (int i = key.length - 1; i >= whole; i--) {
            hash ^= (key[i] & 0xff) << 8 * (i - whole);
        }
        hash = whole < key.length ? hash * MURMUR : hash;
        hash = (hash ^ hash >>> 13) * MURMUR;
        return hash ^ hash >>> 15;
    }
}
