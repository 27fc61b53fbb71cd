package org.kreplica.spark;

import java.io.File;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.FileAttribute;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.UUID;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/**
 * The sink of a stream into a cluster, with a transaction for each batch.
 *
 * Tasks make record batches of their rows; the driver appends them when all tasks have done so, with the number of the
 * stream's batch as a group's offset. A batch that Spark repeats is not written if the group has its number. The
 * Python sink does the same with the same names, so a query may change from one to the other. One thread.
 */
final class TransactionalSink implements StreamingWrite {
    /** How often a transaction is begun again that a change of leaders or coordinators has ended. */
    private static final int ATTEMPTS = 5;
    /** As in spark_connector/cluster_sink.py: a driver that died holds back readers of committed records so long. */
    private static final int LEAST_TIMEOUT_MS = 60_000;
    private static final int MOST_TIMEOUT_MS = 900_000;
    private static final int BYTES_A_MS = 1000;

    private final StructType schema;
    private final GivenOptions options;
    private final String query;
    private final String topic;
    private final ClusterClient client;
    private final TransactionalProducer producer;
    /** The query's directory in the checkpoint, as the Python sink has it; null if the checkpoint is elsewhere. */
    private final File directory;

    TransactionalSink(LogicalWriteInfo info, GivenOptions options) {
        schema = info.schema();
        this.options = options;
        query = info.queryId();
        topic = options.text("topic");
        RowPlaces.check(schema, topic);
        client = new ClusterClient(options.text("kafka.bootstrap.servers"));
        producer = new TransactionalProducer(client, "spark-" + query);
        directory = directory(options, query);
    }

    private static File directory(GivenOptions options, String query) {
        String checkpoint = options.text("checkpointLocation");
        if (checkpoint == null || checkpoint.matches("(?!file:)[a-zA-Z][a-zA-Z0-9+.-]*:.*")) {
            return null;
        }
        String path = checkpoint.startsWith("file:") ? "/" + checkpoint.substring(5).replaceFirst("^/+", "")
            : checkpoint;
        File found = new File(path).getAbsoluteFile();
        return found.isDirectory() ? new File(new File(found, "kreplica"), query) : null;
    }

    /** Returns why Python must write, null if this sink can. Raises ReadException if no server answers. */
    static String reasonForPython(LogicalWriteInfo info, GivenOptions options) {
        if (!GivenOptions.OptionTable.isOfCluster(options)) {
            return "only the Python sink writes directories";
        }
        if ("python".equalsIgnoreCase(options.text("reader"))) {
            return "reader=python";
        }
        String protocol = options.text("kafka.security.protocol");
        if (protocol != null && !protocol.equalsIgnoreCase("PLAINTEXT")) {
            return "only the Python sink writes to a cluster by " + protocol;
        }
        String way = options.text("exactlyOnce");
        if (way != null && way.equalsIgnoreCase("idempotent")) {
            return "exactlyOnce=idempotent";
        }
        File directory = directory(options, info.queryId());
        String[] names = directory == null ? null : directory.list();
        for (int i = 0; names != null && i < names.length; i++) {
            if (names[i].endsWith(".intent") || names[i].endsWith(".committed")) {
                return "the query's checkpoint has batches of exactlyOnce=idempotent";
            }
        }
        return way == null && transactionVersion(options) < 1 ? "the cluster has no transaction.version of 1 or more"
            : null;
    }

    private static int transactionVersion(GivenOptions options) {
        ClusterClient client = new ClusterClient(options.text("kafka.bootstrap.servers"));
        try {
            return client.transactionVersion();
        } catch (IOException error) {
            throw ReadException.of(error);
        } finally {
            client.close();
        }
    }

    public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo info) {
        if (directory != null) {
            directory.mkdirs();
        }
        try {
            RowPlaces places = new RowPlaces(schema, topic, client.leaders().keySet(), client.toString());
            String codec = options.text("kafka.compression.type");
            return new WriterFactory(schema, places, codec == null ? "none" : codec.toLowerCase(java.util.Locale.ROOT),
                directory == null ? null : directory.getPath());
        } catch (IOException error) {
            throw ReadException.of(error);
        } finally {
            client.close();
        }
    }

    public boolean useCommitCoordinator() {
        return false;
    }

    public void commit(long batch, WriterCommitMessage[] messages) {
        SortedMap batches = new TreeMap();
        long bytes = 0;
        for (int i = 0; i < messages.length; i++) {
            List mine = messages[i] == null ? new ArrayList() : ((Staged) messages[i]).batches;
            for (Iterator j = mine.iterator(); j.hasNext();) {
                StagedBatch each = (StagedBatch) j.next();
                ClusterClient.put(batches, each.at, each);
                bytes += each.size();
            }
        }
        try {
            if (!batches.isEmpty()) {
                leaveIdempotent();
                write(batches, batch, timeoutMs(bytes));
            }
            discard(batch);
        } catch (IOException error) {
            throw ReadException.of(error);
        } finally {
            client.close();
        }
    }

    private int timeoutMs(long bytes) {
        long given = options.count("kafka.transaction.timeout.ms");
        return (int) (given > 0 ? given : Math.min(MOST_TIMEOUT_MS, LEAST_TIMEOUT_MS + bytes / BYTES_A_MS));
    }

    private void write(SortedMap batches, long batch, int timeoutMs) throws IOException {
        for (int attempt = 1; true; attempt++) {
            try {
                if (isWritten(batch, timeoutMs)) {
                    return;
                }
                producer.write(batches, batch);
                return;
            } catch (ClusterError error) {
                requireAnotherAttempt(error, attempt, timeoutMs);
                KreplicaProvider.LOGGER.warn("spark-{}: batch {} is written again", query, Long.valueOf(batch));
            }
        }
    }

    /** Begins if necessary, and returns whether a transaction has written the batch. */
    private boolean isWritten(long batch, int timeoutMs) throws IOException {
        if (producer.isReady(timeoutMs)) {
            return false;
        }
        producer.begin(timeoutMs);
        // The previous transaction is complete, and no other driver can begin one unnoticed.
        return producer.lastWritten() >= batch;
    }

    /** Returns if the batch may be written again; else aborts the transaction and raises the error. */
    private void requireAnotherAttempt(ClusterError error, int attempt, int timeoutMs) throws IOException {
        switch (error.code) {
            case ClusterError.PRODUCER_FENCED:
            case ClusterError.INVALID_PRODUCER_EPOCH:
                producer.forget();
                throw new ReadException("spark-" + query + ": the transaction was ended by another driver of this query"
                    + ", or took longer than kafka.transaction.timeout.ms=" + timeoutMs + ": " + error.getMessage(),
                    error);
            case ClusterError.INVALID_PRODUCER_ID_MAPPING:
            case ClusterError.INVALID_TXN_STATE:
            case ClusterError.OUT_OF_ORDER_SEQUENCE_NUMBER:
            case ClusterError.TRANSACTION_ABORTABLE:
            case ClusterError.UNKNOWN_PRODUCER_ID:
                producer.forget();
                if (attempt == ATTEMPTS) {
                    throw error;
                }
                return;
            default:
                abort();
                throw error;
        }
    }

    /** Aborts the transaction of a batch that cannot be written; readers would wait for its timeout. */
    private void abort() throws IOException {
        try {
            if (producer.isReady(0)) {
                producer.end(false);
            }
        } catch (ClusterError error) {
            KreplicaProvider.LOGGER.warn("the transaction of a failed batch stays open until its timeout: {}",
                error.getMessage());
        }
        producer.forget();
    }

    /** Notes for the Python sink that batches may have been written without its log of commits. */
    private void leaveIdempotent() throws IOException {
        Path note = directory == null ? null : new File(directory, "left").toPath();
        if (note != null && !note.toFile().exists()) {
            Files.createDirectories(note.getParent(), new FileAttribute[0]);
            Path made = Files.write(new File(directory, "left.tmp").toPath(), "{\"version\": 0}".getBytes("US-ASCII"),
                new java.nio.file.OpenOption[0]);
            Files.move(made, note, new java.nio.file.CopyOption[] {java.nio.file.StandardCopyOption.ATOMIC_MOVE});
        }
    }

    public void abort(long batch, WriterCommitMessage[] messages) {
        discard(batch);
    }

    private void discard(long batch) {
        File staging = directory == null ? null : staging(directory.getPath(), batch);
        File[] files = staging == null ? null : staging.listFiles();
        for (int i = 0; files != null && i < files.length; i++) {
            files[i].delete();
        }
        if (files != null) {
            staging.delete();
        }
    }

    private static File staging(String directory, long batch) {
        return new File(directory, batch + ".batches");
    }

    /** What a task has made of its rows. Immutable. */
    private static final class Staged implements WriterCommitMessage {
        private static final long serialVersionUID = 1;

        final List batches;

        Staged(List batches) {
            this.batches = batches;
        }
    }

    /** Makes the writers of tasks. Immutable. */
    private static final class WriterFactory implements StreamingDataWriterFactory {
        private static final long serialVersionUID = 1;

        private final StructType schema;
        private final RowPlaces places;
        private final String codec;
        private final String directory;

        WriterFactory(StructType schema, RowPlaces places, String codec, String directory) {
            this.schema = schema;
            this.places = places;
            this.codec = codec;
            this.directory = directory;
        }

        public DataWriter createWriter(int partition, long task, long batch) {
            places.turn = partition + (int) batch;
            return new RowWriter(schema, places, codec, directory == null ? null : staging(directory, batch));
        }
    }

    /** Turns the rows of a task into record batches. One thread. */
    private static final class RowWriter implements DataWriter {
        /** As in spark_connector/sink_rows.py. */
        private static final int BATCH_BYTES = 1 << 19;
        private static final int MOST_RECORD_BYTES = 1_000_000;
        private static final int MOST_HELD_BYTES = 256 << 20;
        /** What is sent to the driver with the end of the task; more goes into a file. */
        private static final int HELD_BYTES = 1 << 20;

        private final RowPlaces places;
        private final String codec;
        private final File staging;
        private final int keyAt;
        private final int valueAt;
        private final int headersAt;
        private final boolean keyIsText;
        private final boolean valueIsText;
        /** A BatchBuilder by partition. */
        private final Map builders = new HashMap();
        private final List batches = new ArrayList();
        private long held;
        private RandomAccessFile file;
        private String path;

        RowWriter(StructType schema, RowPlaces places, String codec, File staging) {
            this.places = places;
            this.codec = codec;
            this.staging = staging;
            keyAt = Columns.index(schema, Columns.KEY);
            valueAt = Columns.index(schema, Columns.VALUE);
            headersAt = Columns.index(schema, Columns.HEADERS);
            keyIsText = keyAt >= 0 && schema.fields()[keyAt].dataType().sameType(DataTypes.StringType);
            valueIsText = schema.fields()[valueAt].dataType().sameType(DataTypes.StringType);
        }

        public void write(Object given) throws IOException {
            InternalRow row = (InternalRow) given;
            byte[] key = bytes(row, keyAt, keyIsText, "key");
            byte[] value = bytes(row, valueAt, valueIsText, "value");
            TopicPartition at = places.of(row, key);
            BatchBuilder builder = (BatchBuilder) builders.get(at);
            if (builder == null) {
                builder = new BatchBuilder(codec);
                builders.put(at, builder);
            }
            int before = builder.size();
            int size = (key == null ? 0 : key.length) + (value == null ? 0 : value.length);
            if (before > 0 && before + size > BATCH_BYTES) {
                finish(at, builder);
                before = 0;
            }
            boolean hasHeaders = headersAt >= 0 && !row.isNullAt(headersAt);
            builder.add(key, value, hasHeaders ? headers(row) : null);
            if (builder.size() - before > MOST_RECORD_BYTES + BatchHeader.SIZE) {
                throw tooLarge("a record", builder.size() - before);
            }
            if (builder.size() >= BATCH_BYTES) {
                finish(at, builder);
            }
        }

        private org.apache.spark.sql.catalyst.util.ArrayData headers(InternalRow row) {
            org.apache.spark.sql.catalyst.util.ArrayData found = row.getArray(headersAt);
            for (int i = 0; i < found.numElements(); i++) {
                if (found.isNullAt(i) || found.getStruct(i, 2).isNullAt(0)) {
                    throw new ReadException("column headers: a header has no key");
                }
            }
            return found;
        }

        private static byte[] bytes(InternalRow row, int index, boolean isText, String name) {
            if (index < 0 || row.isNullAt(index)) {
                return null;
            }
            byte[] found = isText ? row.getUTF8String(index).getBytes() : row.getBinary(index);
            if (found.length > MOST_RECORD_BYTES) {
                throw tooLarge("a " + name, found.length);
            }
            return found;
        }

        private static ReadException tooLarge(String what, int size) {
            return new ReadException(what + " has " + size + " bytes; the maximum is " + MOST_RECORD_BYTES
                + ": leave such rows out, or store their contents elsewhere");
        }

        private void finish(TopicPartition at, BatchBuilder builder) throws IOException {
            StagedBatch made = new StagedBatch(at, builder.finish());
            places.turn++;
            if (held + made.size() > HELD_BYTES && staging != null && isShared()) {
                batches.add(made.in(file, path));
                return;
            }
            held += made.size();
            if (held > MOST_HELD_BYTES) {
                throw new ReadException("a task has more than " + MOST_HELD_BYTES + " bytes of rows, and shares no"
                    + " directory with the driver: set checkpointLocation to a directory that all machines mount, use"
                    + " more tasks, or exactlyOnce=idempotent");
            }
            batches.add(made);
        }

        /** Opens the task's file, if this machine sees the driver's checkpoint. */
        private boolean isShared() throws IOException {
            if (file == null && staging.getParentFile().isDirectory()) {
                Files.createDirectories(staging.toPath(), new FileAttribute[0]);
                path = new File(staging, UUID.randomUUID().toString()).getPath();
                file = new RandomAccessFile(path, "rw");
            }
            return file != null;
        }

        public WriterCommitMessage commit() throws IOException {
            for (Iterator i = builders.entrySet().iterator(); i.hasNext();) {
                Map.Entry each = (Map.Entry) i.next();
                BatchBuilder builder = (BatchBuilder) each.getValue();
                if (builder.size() > 0) {
                    finish((TopicPartition) each.getKey(), builder);
                }
            }
            return new Staged(batches);
        }

        public void abort() throws IOException {
            close();
            if (path != null) {
                Files.deleteIfExists(new File(path).toPath());
            }
        }

        public void close() throws IOException {
            if (file != null) {
                file.close();
            }
        }
    }
}
