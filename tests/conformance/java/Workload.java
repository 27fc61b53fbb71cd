import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Makes a broker write what kreplica has to read: one method a scenario, run by its name.
 *
 * <p>Arguments: bootstrap, "small" or "large" (a committed fixture, or a log worth a test of its own), scenarios;
 * "topic:NAME" creates an empty topic. A batch ends where a scenario flushes, so that the same records come in the same batches each time. Scenarios
 * whose producers are transactional or idempotent use the wall clock, since a broker forgets producers by it; the
 * others name their timestamps. The process ends without closing what a scenario left open.
 */
public final class Workload {
    private static final long START_MS = 1_700_000_000_000L;

    private final String bootstrap;
    private final boolean large;
    private final Admin admin;
    private final Random random = new Random(7);

    private Workload(String bootstrap, boolean large) {
        this.bootstrap = bootstrap;
        this.large = large;
        this.admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
    }

    public static void main(String[] arguments) throws Exception {
        Workload workload = new Workload(arguments[0], arguments[1].equals("large"));
        for (String scenario : Arrays.copyOfRange(arguments, 2, arguments.length)) {
            workload.run(scenario);
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private void run(String scenario) throws Exception {
        switch (scenario) {
            case "codecs" -> codecs();
            case "big-records" -> bigRecords();
            case "log-append-time" -> logAppendTime();
            case "idempotent" -> idempotent();
            case "transactions" -> transactions("transactions");
            case "compacted" -> compacted();
            case "segments" -> segments("segments", large ? 60 : 8);
            case "trimmed" -> trimmed();
            case "epochs" -> epochs();
            case "group-offsets" -> groupOffsets();
            case "unclean" -> segments("unclean", large ? 30 : 3);
            case "unclean-transactions" -> transactions("unclean-transactions");
            default -> {
                if (!scenario.startsWith("topic:")) {
                    throw new IllegalArgumentException(scenario);
                }
                topic(scenario.substring("topic:".length()), Map.of());
            }
        }
    }

    // ---- scenarios -----------------------------------------------------------------------------------------

    /** Every codec, each in a log of its own: single records, the odd ones, many alike, one of several blocks. */
    private void codecs() throws Exception {
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            String topic = "codec-" + codec;
            topic(topic, Map.of());
            try (KafkaProducer<byte[], byte[]> producer = producer(Map.of("compression.type", codec))) {
                long time = START_MS;
                send(producer, topic, time++, bytes("key"), bytes("value"));
                producer.flush();
                for (ProducerRecord<byte[], byte[]> record : oddRecords(topic, time)) {
                    producer.send(record);
                }
                producer.flush();
                int alike = large ? 20_000 : 40;
                for (int i = 0; i < alike; i++) {
                    // Timestamps go back within a batch now and then: their maximum is not the last one.
                    send(producer, topic, time + (i % 7 == 3 ? -500 : i), bytes("key-" + i % 10), bytes("value number " + i));
                }
                producer.flush();
                send(producer, topic, time + alike, bytes("long"), text(codec.equals("none") && !large ? 3_000 : 150_000));
            }
        }
    }

    /** Keys, values and headers that are null, empty, repeated or not ASCII. */
    private static List<ProducerRecord<byte[], byte[]>> oddRecords(String topic, long time) {
        byte[] empty = new byte[0];
        byte[][][] pairs = {
            {null, bytes("no key")}, {bytes("tombstone"), null}, {null, null},
            {empty, bytes("empty key")}, {bytes("empty value"), empty}, {empty, empty},
        };
        List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
        for (byte[][] pair : pairs) {
            records.add(new ProducerRecord<>(topic, 0, time, pair[0], pair[1]));
        }
        List<Header> headers = List.of(
            new RecordHeader("plain", bytes("1")), new RecordHeader("plain", bytes("2")),
            new RecordHeader("null", (byte[]) null), new RecordHeader("empty", empty),
            new RecordHeader("", bytes("no name")), new RecordHeader("größe", new byte[] {0, (byte) 0xff, (byte) 0x80}));
        records.add(new ProducerRecord<>(topic, 0, time + 1, bytes("headers"), bytes("six"), headers));
        records.add(new ProducerRecord<>(topic, 0, time + 2, null, null, headers.subList(0, 1)));
        return records;
    }

    /** Records of 900 KB. In the small form they are such that the codec makes little of them. */
    private void bigRecords() throws Exception {
        topic("big-records", Map.of());
        List<String> codecs = large ? List.of("none", "gzip", "snappy", "lz4", "zstd") : List.of("gzip", "zstd");
        long time = START_MS;
        for (String codec : codecs) {
            try (KafkaProducer<byte[], byte[]> producer = producer(Map.of("compression.type", codec))) {
                byte[] value = large ? noise(900_000) : text(900_000);
                send(producer, "big-records", time++, bytes(codec), value);
                producer.flush();
                send(producer, "big-records", time++, bytes(codec), bytes("after"));
            }
        }
    }

    /** The broker's clock in place of the producer's, in plain and in compressed batches. */
    private void logAppendTime() throws Exception {
        topic("log-append-time", Map.of("message.timestamp.type", "LogAppendTime"));
        for (String codec : List.of("none", "lz4", "gzip")) {
            try (KafkaProducer<byte[], byte[]> producer = producer(Map.of("compression.type", codec))) {
                for (int batch = 0; batch < (large ? 200 : 3); batch++) {
                    for (int i = 0; i < 5; i++) {
                        send(producer, "log-append-time", START_MS + i, bytes(codec), bytes("value " + batch + "/" + i));
                    }
                    producer.flush();
                    Thread.sleep(2);
                }
            }
        }
    }

    /** Two idempotent producers in turns: their ids, epochs and sequences are in the batches and the snapshots. */
    private void idempotent() throws Exception {
        topic("idempotent", smallSegments(1_000));
        Map<String, Object> settings = Map.of("enable.idempotence", true, "acks", "all");
        try (KafkaProducer<byte[], byte[]> one = producer(settings);
                KafkaProducer<byte[], byte[]> two = producer(settings)) {
            for (int round = 0; round < (large ? 500 : 8); round++) {
                for (KafkaProducer<byte[], byte[]> producer : List.of(one, two)) {
                    for (int i = 0; i <= round % 3; i++) {
                        send(producer, "idempotent", null, bytes("key-" + round), bytes(producer == one ? "one" : "two"));
                    }
                    producer.flush();
                }
            }
        }
    }

    /** Interleaved transactions, committed and aborted, over several segments; at the end one that stays open. */
    private void transactions(String topic) throws Exception {
        topic(topic, smallSegments(2_000));
        KafkaProducer<byte[], byte[]> plain = producer(Map.of());
        KafkaProducer<byte[], byte[]> one = transactional(topic + "-one");
        KafkaProducer<byte[], byte[]> two = transactional(topic + "-two");
        KafkaProducer<byte[], byte[]> open = transactional(topic + "-open");
        for (int round = 0; round < (large ? 200 : 12); round++) {
            one.beginTransaction();
            two.beginTransaction();
            sendSome(one, topic, "one-" + round, 3);
            sendSome(two, topic, "two-" + round, 2);
            sendSome(plain, topic, "plain-" + round, 1);
            sendSome(one, topic, "one-again-" + round, 1);
            finish(one, round % 3 != 1);
            finish(two, round % 2 == 0);
        }
        open.beginTransaction();
        sendSome(open, topic, "open", 2);
        sendSome(plain, topic, "plain after the open one", 3);
        one.beginTransaction();
        sendSome(one, topic, "committed after the open one", 2);
        finish(one, true);
        two.beginTransaction();
        sendSome(two, topic, "aborted after the open one", 2);
        finish(two, false);
    }

    /**
     * Keys that are overwritten, tombstones that stay, transactions, and a producer of whose last batch nothing is
     * left; then enough to roll. The cleaner takes its turn when this is done, and again when it was done once more:
     * it gives a marker its delete horizon only after the transaction's records are gone.
     */
    private void compacted() throws Exception {
        Map<String, String> settings = new HashMap<>(smallSegments(large ? 200_000 : 4_000));
        settings.put("cleanup.policy", "compact");
        settings.put("min.cleanable.dirty.ratio", "0.01");
        settings.put("delete.retention.ms", String.valueOf(Duration.ofDays(3_650).toMillis()));
        topic("compacted", settings);
        KafkaProducer<byte[], byte[]> overwritten = producer(Map.of("enable.idempotence", true, "acks", "all"));
        sendSome(overwritten, "compacted", "soon gone", 4);
        KafkaProducer<byte[], byte[]> plain = producer(Map.of());
        sendSome(plain, "compacted", "soon gone", 4);
        for (int i = 0; i < 4; i++) {
            send(plain, "compacted", null, bytes("deleted-" + i / 2), i % 2 == 0 ? bytes("value") : null);
        }
        plain.flush();
        KafkaProducer<byte[], byte[]> zipped = producer(Map.of("compression.type", "gzip"));
        KafkaProducer<byte[], byte[]> transactional = transactional("compacted");
        for (int round = 0; round < (large ? 300 : 12); round++) {
            KafkaProducer<byte[], byte[]> producer = round % 3 == 2 ? zipped : plain;
            for (int key = 0; key < (large ? 100 : 16); key++) {
                boolean tombstone = key % 5 == 4 && round % 4 == 3;
                if ((key + round) % 3 != 0) {
                    byte[] value = tombstone ? null : bytes("value " + round + " of key " + key);
                    send(producer, "compacted", null, bytes("key-" + key), value);
                }
            }
            producer.flush();
            transactional.beginTransaction();
            sendSome(transactional, "compacted", "transactional-" + round % 4, 2);
            finish(transactional, round % 3 != 0);
        }
        plain.close();
        zipped.close();
        transactional.close();
        overwritten.close();
    }

    /** Many small segments; offsets, positions and timestamps in every index. */
    private void segments(String topic, int segments) throws Exception {
        topic(topic, smallSegments(large ? 20_000 : 1_500));
        try (KafkaProducer<byte[], byte[]> producer = producer(Map.of("enable.idempotence", true, "acks", "all"))) {
            int values = segments * (large ? 200 : 15);
            for (int i = 0; i < values; i++) {
                send(producer, topic, null, bytes("key-" + i), Arrays.copyOf(bytes("value " + i + " "), 80));
                if (i % 3 == 2) {
                    producer.flush();
                }
            }
        }
    }

    /** Records deleted up to an offset inside a batch: the log starts there, whatever its first segment holds. */
    private void trimmed() throws Exception {
        topic("trimmed", smallSegments(1_000));
        try (KafkaProducer<byte[], byte[]> producer = producer(Map.of())) {
            for (int batch = 0; batch < 20; batch++) {
                sendSome(producer, "trimmed", "batch-" + batch, 4);
            }
        }
        admin.deleteRecords(Map.of(new TopicPartition("trimmed", 0), RecordsToDelete.beforeOffset(42))).all().get();
    }

    /** A few records in the leader epoch of the day: run it again after each restart. */
    private void epochs() throws Exception {
        topic("epochs", Map.of());
        try (KafkaProducer<byte[], byte[]> producer = producer(Map.of("enable.idempotence", true, "acks", "all"))) {
            sendSome(producer, "epochs", "epoch", 3);
            sendSome(producer, "epochs", "epoch", 1);
        }
    }

    /** A group's offsets, stored by its consumer and as part of a transaction that commits and one that aborts. */
    private void groupOffsets() throws Exception {
        TopicPartition partition = new TopicPartition("codec-none", 0);
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "group.id", "group", "enable.auto.commit", false);
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(partition));
            consumer.commitSync(Map.of(partition, new OffsetAndMetadata(3, "three")));
            try (KafkaProducer<byte[], byte[]> producer = transactional("group-offsets")) {
                for (boolean commits : new boolean[] {true, false}) {
                    producer.beginTransaction();
                    producer.sendOffsetsToTransaction(
                        Map.of(partition, new OffsetAndMetadata(commits ? 5 : 7)), consumer.groupMetadata());
                    finish(producer, commits);
                }
            }
        }
    }

    // ---- what scenarios are made of ------------------------------------------------------------------------

    /** Create the topic, one partition, kept for ever; one that exists stays as it is. */
    private void topic(String name, Map<String, String> settings) throws Exception {
        Map<String, String> all = new LinkedHashMap<>(settings);
        all.put("retention.ms", "-1");
        try {
            admin.createTopics(List.of(new NewTopic(name, 1, (short) 1).configs(all))).all().get();
        } catch (ExecutionException error) {
            if (!(error.getCause() instanceof TopicExistsException)) {
                throw error;
            }
        }
    }

    private static Map<String, String> smallSegments(int bytes) {
        return Map.of("internal.segment.bytes", String.valueOf(bytes), "index.interval.bytes", String.valueOf(bytes / 5));
    }

    /** A producer that sends a batch when it is full or flushed; idempotent only if the settings say so. */
    private KafkaProducer<byte[], byte[]> producer(Map<String, Object> settings) {
        Map<String, Object> all = new HashMap<>(Map.of(
            "bootstrap.servers", bootstrap, "enable.idempotence", false, "linger.ms", 60_000,
            "batch.size", 64 << 10, "max.request.size", 4 << 20, "delivery.timeout.ms", 120_000));
        all.putAll(settings);
        return new KafkaProducer<>(all, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private KafkaProducer<byte[], byte[]> transactional(String id) {
        KafkaProducer<byte[], byte[]> producer = producer(Map.of(
            "enable.idempotence", true, "acks", "all", "transactional.id", id,
            "transaction.timeout.ms", Integer.MAX_VALUE));
        producer.initTransactions();
        return producer;
    }

    private static void finish(KafkaProducer<byte[], byte[]> producer, boolean commits) {
        if (commits) {
            producer.commitTransaction();
        } else {
            producer.abortTransaction();
        }
    }

    /** One batch of `count` records. */
    private static void sendSome(KafkaProducer<byte[], byte[]> producer, String topic, String what, int count) {
        for (int i = 0; i < count; i++) {
            send(producer, topic, null, bytes(what + "-" + i), bytes("value of " + what + ", " + i));
        }
        producer.flush();
    }

    private static void send(
            KafkaProducer<byte[], byte[]> producer, String topic, Long timestampMs, byte[] key, byte[] value) {
        producer.send(new ProducerRecord<>(topic, 0, timestampMs, key, value), (metadata, error) -> {
            if (error != null) {
                error.printStackTrace();
                Runtime.getRuntime().halt(1);
            }
        });
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    /** Text of this length that a codec makes very short, and that reads differently in each of its parts. */
    private static byte[] text(int length) {
        StringBuilder text = new StringBuilder();
        while (text.length() < length) {
            text.append("part ").append(text.length() / 50_000).append(" of a long value. ");
        }
        return bytes(text.substring(0, length));
    }

    private byte[] noise(int length) {
        byte[] noise = new byte[length];
        random.nextBytes(noise);
        return noise;
    }
}
