import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.Delayed;
import java.util.concurrent.FutureTask;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import java.util.stream.Stream;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.record.internal.SimpleRecord;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.common.RequestLocal;
import org.apache.kafka.server.common.TransactionVersion;
import org.apache.kafka.server.util.Scheduler;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.LogAppendInfo;
import org.apache.kafka.storage.internals.log.LogCleanerManager;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.PreCleanStats;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.log.VerificationGuard;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Kafka's UnifiedLog and Cleaner on directories of the caller's, at times of the caller's.
 *
 * <p>Each line of standard input is a JSON object: "do" (append, clean, dump, read), "log" (a partition's directory),
 * "settings" (of its topic), "now" (ms), "clean" (whether its last writer closed it), and what the command wants; each
 * is answered by one line. Bytes are text here, a character each (ISO 8859-1). An answer of "error" and nothing else
 * says that the command failed. What Kafka would do a while later, such as deleting a replaced file, it does at once.
 */
public final class Compaction {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final BrokerTopicStats statistics = new BrokerTopicStats();
    private final JsonNode command;
    private final File directory;
    private final Clock clock;
    private final LogConfig config;
    private final LogDirFailureChannel failures = new LogDirFailureChannel(1);
    /** Where copies of the directory go that show it in the middle of a cleaning; null for none. */
    private final Path snapshots;
    private int taken;

    private Compaction(JsonNode command) {
        this.command = command;
        this.directory = new File(command.get("log").asText());
        this.clock = new Clock(command.path("now").asLong());
        this.snapshots = command.has("snapshots") ? Path.of(command.get("snapshots").asText()) : null;
        Properties settings = new Properties();
        settings.put("file.delete.delay.ms", "0");
        command.path("settings").properties().forEach(each -> settings.put(each.getKey(), each.getValue().asText()));
        this.config = new LogConfig(settings);
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Object answer;
            try {
                answer = new Compaction(JSON.readTree(line)).answer();
            } catch (Exception | LinkageError | AssertionError error) {
                error.printStackTrace();
                answer = Map.of("error", error.toString());
            }
            System.out.println(JSON.writeValueAsString(answer));
        }
        Runtime.getRuntime().halt(0);
    }

    private Object answer() throws Exception {
        return switch (command.get("do").asText()) {
            case "append" -> append();
            case "clean" -> clean();
            case "dump" -> Dump.of(directory);
            case "read" -> read();
            default -> throw new IllegalArgumentException(command.get("do").asText());
        };
    }

    // ---- append --------------------------------------------------------------------------------------------

    /**
     * Append "batches" in turn: {"codec", "records": [[timestamp, key, value, [[name, value] ...]] ...], "producer":
     * [id, epoch, sequence], "transactional", "epoch"}, {"marker": "COMMIT", "producer": [id, epoch], "timestamp"},
     * {"roll"} or {"now"}. The answer says of each its first and last offset, or the name of what Kafka threw.
     * "killed": the log is not closed behind it.
     */
    private Object append() throws Exception {
        List<Object> answers = new ArrayList<>();
        Files.createDirectories(directory.toPath());
        UnifiedLog log = open();
        for (JsonNode batch : command.get("batches")) {
            try {
                answers.add(append(log, batch));
                log.updateHighWatermark(log.logEndOffset());
            } catch (RuntimeException error) {
                answers.add(error.getClass().getSimpleName());
            }
        }
        if (command.path("killed").asBoolean()) {
            log.closeHandlers();
        } else {
            log.close();
        }
        return answers;
    }

    private Object append(UnifiedLog log, JsonNode batch) throws IOException {
        if (batch.has("roll")) {
            log.roll();
            return List.of();
        }
        if (batch.has("now")) {
            clock.milliseconds = batch.get("now").asLong();
            return List.of();
        }
        JsonNode producer = batch.path("producer");
        long producerId = producer.isArray() ? producer.get(0).asLong() : RecordBatch.NO_PRODUCER_ID;
        short epoch = producer.isArray() ? (short) producer.get(1).asInt() : RecordBatch.NO_PRODUCER_EPOCH;
        int leaderEpoch = batch.path("epoch").asInt(0);
        LogAppendInfo info;
        if (batch.has("marker")) {
            ControlRecordType type = ControlRecordType.valueOf(batch.get("marker").asText());
            MemoryRecords marker = MemoryRecords.withEndTransactionMarker(
                batch.get("timestamp").asLong(), producerId, epoch, new EndTransactionMarker(type, 0));
            info = log.appendAsLeader(
                marker, leaderEpoch, AppendOrigin.COORDINATOR, RequestLocal.noCaching(), VerificationGuard.SENTINEL,
                TransactionVersion.TV_1.featureLevel());
        } else {
            List<SimpleRecord> records = new ArrayList<>();
            batch.get("records").forEach(record -> records.add(record(record)));
            CompressionType codec = CompressionType.forName(batch.path("codec").asText("none"));
            MemoryRecords built = MemoryRecords.withRecords(
                RecordBatch.CURRENT_MAGIC_VALUE, 0L, Compression.of(codec).build(), TimestampType.CREATE_TIME, producerId,
                epoch, producer.isArray() ? producer.get(2).asInt() : RecordBatch.NO_SEQUENCE,
                RecordBatch.NO_PARTITION_LEADER_EPOCH, batch.path("transactional").asBoolean(),
                records.toArray(new SimpleRecord[0]));
            info = log.appendAsLeader(built, leaderEpoch);
        }
        return List.of(info.firstOffset(), info.lastOffset());
    }

    private static SimpleRecord record(JsonNode record) {
        List<Header> headers = new ArrayList<>();
        record.path(3).forEach(header -> headers.add(new RecordHeader(header.get(0).asText(), bytes(header.get(1)))));
        return new SimpleRecord(
            record.get(0).asLong(), bytes(record.get(1)), bytes(record.get(2)), headers.toArray(new Header[0]));
    }

    private static byte[] bytes(JsonNode text) {
        return text.isNull() ? null : text.asText().getBytes(StandardCharsets.ISO_8859_1);
    }

    // ---- clean ---------------------------------------------------------------------------------------------

    /**
     * As a broker's cleaner thread does it, checkpoint included, until there is nothing more to clean or "rounds" are
     * done, with an offset map of "map_bytes". The answer has [first dirty offset, first uncleanable one, where the
     * round ended] of each round. "snapshots": a directory for copies of the log's, taken wherever the cleaner looks
     * around whether it should stop, and before it lets a file go.
     */
    private Object clean() throws Exception {
        UnifiedLog log = open();
        log.updateHighWatermark(log.logEndOffset());
        ConcurrentMap<TopicPartition, UnifiedLog> logs = new ConcurrentHashMap<>(Map.of(log.topicPartition(), log));
        LogCleanerManager manager = new LogCleanerManager(List.of(log.parentDirFile()), logs, failures);
        Throttler throttler = new Throttler(Double.MAX_VALUE, 300, "cleaner", "bytes", Time.SYSTEM);
        SkimpyOffsetMap map = new SkimpyOffsetMap(command.path("map_bytes").asInt(1 << 20));
        Cleaner cleaner = new Cleaner(0, map, 64 << 10, 4 << 20, 0.9, throttler, Time.SYSTEM, partition -> snapshot());
        List<Object> rounds = new ArrayList<>();
        while (rounds.size() < command.path("rounds").asInt(100)) {
            Optional<LogToClean> found = manager.grabFilthiestCompactedLog(clock, new PreCleanStats());
            if (found.isEmpty()) {
                break;
            }
            LogToClean dirty = found.get();
            long end = cleaner.doClean(dirty, clock.milliseconds).getKey();
            manager.doneCleaning(log.topicPartition(), log.parentDirFile(), end);
            rounds.add(List.of(dirty.firstDirtyOffset(), dirty.firstUncleanableOffset(), end));
        }
        manager.removeMetrics();
        log.close();
        return rounds;
    }

    private void snapshot() {
        if (snapshots == null) {
            return;
        }
        try (Stream<Path> files = Files.list(directory.toPath())) {
            Path target = Files.createDirectories(snapshots.resolve(String.valueOf(taken++)).resolve(directory.getName()));
            for (Path file : (Iterable<Path>) files::iterator) {
                Files.copy(file, target.resolve(file.getFileName()));
            }
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    // ---- read ----------------------------------------------------------------------------------------------

    /** Open the log, and say what Kafka then knows of it; its records are the dump's. */
    private Object read() throws Exception {
        UnifiedLog log = open();
        log.updateHighWatermark(log.logEndOffset());
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("start", log.logStartOffset());
        answer.put("end", log.logEndOffset());
        answer.put("last_stable", log.lastStableOffset());
        answer.put("records", Dump.read(log, false));
        answer.put("committed", Dump.read(log, true));
        answer.put("producers", Dump.producers(log));
        log.close();
        return answer;
    }

    // ---- Kafka's log, on its own ---------------------------------------------------------------------------

    private UnifiedLog open() throws IOException {
        return UnifiedLog.create(
            directory, config, 0L, 0L, new AtOnce(), statistics, clock, Integer.MAX_VALUE,
            new ProducerStateManagerConfig(Integer.MAX_VALUE, false), Integer.MAX_VALUE, failures,
            command.path("clean").asBoolean(true), Optional.empty());
    }

    /** A clock that stands where it was set. */
    private static final class Clock implements Time {
        private long milliseconds;

        Clock(long milliseconds) {
            this.milliseconds = milliseconds;
        }

        @Override
        public long milliseconds() {
            return milliseconds;
        }

        @Override
        public long nanoseconds() {
            return milliseconds * 1_000_000;
        }

        @Override
        public void sleep(long ms) {
            milliseconds += ms;
        }

        @Override
        public void waitObject(Object object, Supplier<Boolean> condition, long deadlineMs) {
            throw new UnsupportedOperationException();
        }
    }

    /** Does what is to be done once in the caller's thread, before it returns, and never what is to be repeated. */
    private final class AtOnce implements Scheduler {
        @Override
        public void startup() {}

        @Override
        public void shutdown() {}

        @Override
        public ScheduledFuture<?> schedule(String name, Runnable task, long delayMs, long periodMs) {
            if (periodMs < 0) {
                if (name.startsWith("delete-file")) {
                    snapshot();
                }
                task.run();
            }
            return new Done();
        }

        @Override
        public void resizeThreadPool(int size) {}
    }

    /** What there is nothing left to do of. */
    private static final class Done extends FutureTask<Void> implements ScheduledFuture<Void> {
        Done() {
            super(() -> {}, null);
        }

        @Override
        public long getDelay(TimeUnit unit) {
            return 0;
        }

        @Override
        public int compareTo(Delayed other) {
            return Long.compare(0, other.getDelay(TimeUnit.MILLISECONDS));
        }
    }
}
