import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * What a stock consumer reads, as JSON lines: for each partition one line of its offsets, then one a record.
 *
 * <p>Arguments: bootstrap, then partitions as "topic-0". The partition's line has begin, end (the high watermark),
 * last_stable, and for_times: [timestamp asked for, offset or null]. A record's line says in "committed" whether
 * read_committed returns it too. Bytes are in base64; a value above 1 KiB is its length and SHA-256.
 */
public final class Reading {
    private static final int LONGEST_VALUE_IN_FULL = 1024;
    private static final ObjectMapper JSON = new ObjectMapper();

    private Reading() {}

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        try (KafkaConsumer<byte[], byte[]> all = consumer(arguments[0], "read_uncommitted");
                KafkaConsumer<byte[], byte[]> committed = consumer(arguments[0], "read_committed")) {
            for (String name : Arrays.copyOfRange(arguments, 1, arguments.length)) {
                int dash = name.lastIndexOf('-');
                TopicPartition partition =
                    new TopicPartition(name.substring(0, dash), Integer.parseInt(name.substring(dash + 1)));
                print(out, partition, all, committed);
            }
        }
        out.flush();
    }

    private static KafkaConsumer<byte[], byte[]> consumer(String bootstrap, String isolation) {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", bootstrap, "isolation.level", isolation, "auto.offset.reset", "none",
            "enable.auto.commit", false, "check.crcs", true, "fetch.max.wait.ms", 50);
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static void print(
            PrintStream out, TopicPartition partition,
            KafkaConsumer<byte[], byte[]> all, KafkaConsumer<byte[], byte[]> committed) throws Exception {
        List<ConsumerRecord<byte[], byte[]>> records = read(all, partition);
        Map<Long, Map<String, Object>> visible = new HashMap<>();
        for (ConsumerRecord<byte[], byte[]> record : read(committed, partition)) {
            visible.put(record.offset(), describe(record));
        }
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("partition", partition.toString());
        line.put("begin", all.beginningOffsets(List.of(partition)).get(partition));
        line.put("end", all.endOffsets(List.of(partition)).get(partition));
        line.put("last_stable", committed.endOffsets(List.of(partition)).get(partition));
        line.put("for_times", forTimes(all, partition, records));
        out.println(JSON.writeValueAsString(line));
        for (ConsumerRecord<byte[], byte[]> record : records) {
            Map<String, Object> described = describe(record);
            Map<String, Object> again = visible.remove(record.offset());
            if (again != null && !again.equals(described)) {
                throw new IllegalStateException("the isolation levels differ in " + again + " and " + described);
            }
            described.put("committed", again != null);
            out.println(JSON.writeValueAsString(described));
        }
        if (!visible.isEmpty()) {
            throw new IllegalStateException("only read_committed returned " + visible.keySet());
        }
    }

    private static List<ConsumerRecord<byte[], byte[]>> read(
            KafkaConsumer<byte[], byte[]> consumer, TopicPartition partition) {
        consumer.assign(List.of(partition));
        consumer.seekToBeginning(List.of(partition));
        long end = consumer.endOffsets(List.of(partition)).get(partition);
        List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
        while (consumer.position(partition) < end) {
            consumer.poll(Duration.ofMillis(200)).forEach(records::add);
        }
        return records;
    }

    private static Map<String, Object> describe(ConsumerRecord<byte[], byte[]> record) throws Exception {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("offset", record.offset());
        line.put("leader_epoch", record.leaderEpoch().orElse(null));
        line.put("timestamp", record.timestamp());
        line.put("timestamp_type", record.timestampType() == TimestampType.LOG_APPEND_TIME ? "log_append" : "create");
        line.put("key", describe(record.key()));
        line.put("value", describe(record.value()));
        List<Object> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            headers.add(Arrays.asList(header.key(), describe(header.value())));
        }
        line.put("headers", headers);
        return line;
    }

    private static Object describe(byte[] bytes) throws Exception {
        if (bytes == null) {
            return null;
        }
        if (bytes.length <= LONGEST_VALUE_IN_FULL) {
            return Base64.getEncoder().encodeToString(bytes);
        }
        byte[] digest = MessageDigest.getInstance("SHA-256").digest(bytes);
        return Map.of("length", bytes.length, "sha256", HexFormat.of().formatHex(digest));
    }

    /** Offsets for timestamps before, at, between and after those of the records. */
    private static List<List<Long>> forTimes(
            KafkaConsumer<byte[], byte[]> consumer, TopicPartition partition,
            List<ConsumerRecord<byte[], byte[]>> records) {
        TreeSet<Long> asked = new TreeSet<>(List.of(0L));
        for (int part = 0; part <= 8 && !records.isEmpty(); part++) {
            long timestamp = records.get((records.size() - 1) * part / 8).timestamp();
            asked.addAll(List.of(timestamp, timestamp + 1));
        }
        List<List<Long>> answers = new ArrayList<>();
        for (long timestamp : asked) {
            OffsetAndTimestamp answer = consumer.offsetsForTimes(Map.of(partition, timestamp)).get(partition);
            answers.add(Arrays.asList(timestamp, answer == null ? null : answer.offset()));
        }
        return answers;
    }
}
