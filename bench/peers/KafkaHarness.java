import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.SimpleRecord;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.server.purgatory.DelayedOperation;
import org.apache.kafka.server.purgatory.DelayedOperationKey;
import org.apache.kafka.server.purgatory.DelayedOperationPurgatory;
import org.apache.kafka.server.storage.log.FetchIsolation;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.server.util.timer.SystemTimer;
import org.apache.kafka.server.util.timer.TimerTask;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.CleanerStats;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Times Kafka's own classes in one thread, so that another engine can be compared with them.
 *
 * <p>The argument is a directory on a real file system. Each line of standard input is a JSON object with a measure
 * and its parameters ({"measure": "append", "records": 16, "bytes": 1000, "rounds": 5}). The answer is a line
 * {"unit": ..., "rounds": [...]}, with a figure for each round. A measure with new parameters first runs rounds that
 * do not count, to warm up the compiler. So the caller may ask for one round at a time, in turns with the other engine.
 */
public final class KafkaHarness {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final File directory;
    private final KafkaScheduler scheduler = new KafkaScheduler(1);
    private final BrokerTopicStats statistics = new BrokerTopicStats();
    private final Random random = new Random(7);
    private final Set<Map<String, Object>> warm = new HashSet<>();
    private final Map<Map<String, Object>, Object> prepared = new LinkedHashMap<>();
    private int logs;

    private KafkaHarness(File directory) {
        this.directory = directory;
        scheduler.startup();
    }

    public static void main(String[] arguments) throws Exception {
        KafkaHarness harness = new KafkaHarness(new File(arguments[0]));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(JSON.writeValueAsString(harness.answer(new Question(JSON.readValue(line, Map.class)))));
        }
        Runtime.getRuntime().halt(0);
    }

    private Map<String, Object> answer(Question question) throws Exception {
        Measure measure = switch (question.text("measure")) {
            case "append" -> this::append;
            case "read" -> this::read;
            case "timer-add" -> this::timerAdd;
            case "timer-cancel" -> this::timerCancel;
            case "purgatory" -> this::purgatory;
            case "recovery" -> this::recovery;
            case "compact" -> this::compact;
            case "fill" -> this::fill;
            default -> throw new IllegalArgumentException(question.text("measure"));
        };
        boolean repeats = !Set.of("compact", "fill").contains(question.text("measure"));
        if (warm.add(question.parameters)) {
            for (int i = 0; i < question.number("warm_up", repeats ? 3 : 0); i++) {
                measure.round(question);
            }
        }
        List<Double> rounds = new ArrayList<>();
        for (int i = 0; i < question.rounds; i++) {
            rounds.add(measure.round(question));
        }
        String unit = switch (question.text("measure")) {
            case "recovery", "compact" -> "bytes a second";
            case "fill" -> "bytes";
            default -> "ns";
        };
        return Map.of("unit", unit, "rounds", rounds);
    }

    // ---- the log -------------------------------------------------------------------------------------------

    /** appendAsLeader of a ready batch, until `total_bytes` are in a new log; ns a batch. */
    private double append(Question question) throws IOException {
        MemoryRecords batch = batch((int) question.number("records", 1), (int) question.number("bytes", 1000));
        long batches = question.number("total_bytes", 256 << 20) / batch.sizeInBytes();
        UnifiedLog log = open(newDirectory(), settings(), true);
        long start = System.nanoTime();
        for (long i = 0; i < batches; i++) {
            appendAgain(log, batch);
        }
        long took = System.nanoTime() - start;
        log.delete();
        return (double) took / batches;
    }

    /** read of at least one batch at a random offset of a log of `total_bytes`; ns a read. */
    private double read(Question question) throws IOException {
        if (!prepared.containsKey(question.parameters)) {
            UnifiedLog log = open(newDirectory(), settings(), true);
            appendTo(log, question);
            prepared.put(question.parameters, log);
        }
        UnifiedLog log = (UnifiedLog) prepared.get(question.parameters);
        int reads = (int) question.number("reads", 100_000);
        long[] offsets = random.longs(reads, 0, log.logEndOffset()).toArray();
        long start = System.nanoTime();
        for (long offset : offsets) {
            if (log.read(offset, 1, FetchIsolation.LOG_END, true).records.sizeInBytes() == 0) {
                throw new IllegalStateException("no records at offset " + offset);
            }
        }
        return (double) (System.nanoTime() - start) / reads;
    }

    /** Opening a log of `total_bytes` that was never flushed nor closed, from the page cache; bytes a second. */
    private double recovery(Question question) throws IOException {
        if (!prepared.containsKey(question.parameters)) {
            UnifiedLog log = open(newDirectory(), settings(), true);
            appendTo(log, question);
            log.closeHandlers();
            prepared.put(question.parameters, log.dir());
        }
        File unclean = (File) prepared.get(question.parameters);
        long start = System.nanoTime();
        UnifiedLog log = open(unclean, settings(), false);
        long took = System.nanoTime() - start;
        long size = log.size();
        log.closeHandlers();
        return size * 1e9 / took;
    }

    /**
     * One pass of the cleaner over all but the active segment of the partition directory `log`, which it changes; bytes
     * of the log before the pass, a second. Only one round makes sense; the caller warms up with small logs.
     */
    private double compact(Question question) throws Exception {
        Properties settings = settings();
        settings.put("cleanup.policy", "compact");
        settings.put("delete.retention.ms", String.valueOf(question.number("delete_retention_ms", 86_400_000)));
        UnifiedLog log = open(new File(question.text("log")), settings, true);
        log.updateHighWatermark(log.logEndOffset());
        log.roll();
        Throttler throttler = new Throttler(Double.MAX_VALUE, 300, "cleaner", "bytes", Time.SYSTEM);
        SkimpyOffsetMap map = new SkimpyOffsetMap((int) question.number("map_bytes", 128 << 20));
        Cleaner cleaner = new Cleaner(0, map, 512 << 10, 1 << 20, 0.9, throttler, Time.SYSTEM, partition -> {});
        long size = log.size();
        long start = System.nanoTime();
        Map.Entry<Long, CleanerStats> cleaned =
            cleaner.clean(new LogToClean(log, 0, log.activeSegment().baseOffset(), false));
        long took = System.nanoTime() - start;
        if (cleaned.getKey() != log.logEndOffset()) {
            throw new IllegalStateException("one pass of the cleaner stopped at offset " + cleaned.getKey());
        }
        log.close();
        return size * 1e9 / took;
    }

    /** Write `total_bytes` of keyed records, their keys drawn from `keys`, to the new directory `log`; its bytes. */
    private double fill(Question question) throws IOException {
        File target = new File(question.text("log"));
        Files.createDirectories(target.toPath());
        Properties settings = settings();
        settings.put("internal.segment.bytes", String.valueOf(question.number("segment_bytes", 64 << 20)));
        UnifiedLog log = open(target, settings, true);
        int records = (int) question.number("records", 16);
        byte[] value = new byte[(int) question.number("bytes", 100)];
        while (log.size() < question.number("total_bytes", 256 << 20)) {
            SimpleRecord[] batch = new SimpleRecord[records];
            for (int i = 0; i < records; i++) {
                random.nextBytes(value);
                byte[] key = String.format("key-%012d", random.nextLong(question.number("keys", 100_000))).getBytes();
                batch[i] = new SimpleRecord(System.currentTimeMillis(), key, value.clone());
            }
            log.appendAsLeader(MemoryRecords.withRecords(Compression.NONE, batch), 0);
        }
        double size = log.size();
        log.close();
        return size;
    }

    private void appendTo(UnifiedLog log, Question question) throws IOException {
        MemoryRecords batch = batch((int) question.number("records", 16), (int) question.number("bytes", 1000));
        while (log.size() < question.number("total_bytes", 1 << 30)) {
            appendAgain(log, batch);
        }
    }

    /** Appends the batch again, after resetting the offset that the log wrote; the CRC does not cover it. */
    private static void appendAgain(UnifiedLog log, MemoryRecords batch) throws IOException {
        batch.buffer().putLong(0, 0L);
        log.appendAsLeader(batch, 0);
    }

    private MemoryRecords batch(int count, int bytes) {
        byte[] value = new byte[bytes];
        random.nextBytes(value);
        SimpleRecord[] records = new SimpleRecord[count];
        Arrays.fill(records, new SimpleRecord(System.currentTimeMillis(), value));
        return MemoryRecords.withRecords(Compression.NONE, records);
    }

    private File newDirectory() throws IOException {
        return Files.createDirectories(directory.toPath().resolve("log-" + logs++)).toFile();
    }

    private static Properties settings() {
        return new Properties();
    }

    private UnifiedLog open(File log, Properties settings, boolean clean) throws IOException {
        return UnifiedLog.create(
            log, new LogConfig(settings), 0L, 0L, scheduler, statistics, Time.SYSTEM, 900_000,
            new ProducerStateManagerConfig(86_400_000, false), 600_000, new LogDirFailureChannel(1), clean,
            Optional.empty());
    }

    // ---- waiting -------------------------------------------------------------------------------------------

    private static final class Task extends TimerTask {
        Task(long delayMs) {
            super(delayMs);
        }

        @Override
        public void run() {}
    }

    /** Adding tasks to a timer with `pending` tasks; ns a task. */
    private double timerAdd(Question question) {
        return timer(question)[0];
    }

    /** Cancelling tasks of a timer with `pending` other tasks; ns a task. */
    private double timerCancel(Question question) {
        return timer(question)[1];
    }

    private double[] timer(Question question) {
        Map<String, Object> of = Map.of("pending", question.number("pending", 1_000_000));
        SystemTimer timer = (SystemTimer) prepared.computeIfAbsent(of, absent -> {
            SystemTimer filled = new SystemTimer("pending");
            Arrays.stream(tasks((int) question.number("pending", 1_000_000))).forEach(filled::add);
            return filled;
        });
        Task[] tasks = tasks((int) question.number("tasks", 200_000));
        long start = System.nanoTime();
        for (Task task : tasks) {
            timer.add(task);
        }
        long added = System.nanoTime();
        for (Task task : tasks) {
            task.cancel();
        }
        long cancelled = System.nanoTime();
        return new double[] {(double) (added - start) / tasks.length, (double) (cancelled - added) / tasks.length};
    }

    /** Tasks due in one to thirty minutes, so none is due before the run ends. */
    private Task[] tasks(int count) {
        Task[] tasks = new Task[count];
        for (int i = 0; i < count; i++) {
            tasks[i] = new Task(random.nextLong(TimeUnit.MINUTES.toMillis(1), TimeUnit.MINUTES.toMillis(30)));
        }
        return tasks;
    }

    private record Key(String keyLabel) implements DelayedOperationKey {}

    private static final class Operation extends DelayedOperation {
        private final long[] reached;
        private final long required;

        Operation(long[] reached, long required) {
            super(TimeUnit.MINUTES.toMillis(5));
            this.reached = reached;
            this.required = required;
        }

        @Override
        public boolean tryComplete() {
            return reached[0] >= required && forceComplete();
        }

        @Override
        public void onComplete() {}

        @Override
        public void onExpiration() {}
    }

    /** Watching `waiting` operations at each of `keys` keys, then completing all key by key; ns an operation. */
    private double purgatory(Question question) throws Exception {
        int keys = (int) question.number("keys", 1_000);
        int waiting = (int) question.number("waiting", 10);
        DelayedOperationPurgatory<Operation> purgatory =
            new DelayedOperationPurgatory<>("bench", new SystemTimer("bench"), 0, 1_000, false, true);
        long[] reached = {0};
        List<List<Key>> watched = new ArrayList<>();
        for (int i = 0; i < keys; i++) {
            watched.add(List.of(new Key("topic-" + i)));
        }
        long start = System.nanoTime();
        for (int i = 0; i < waiting; i++) {
            for (List<Key> key : watched) {
                purgatory.tryCompleteElseWatch(new Operation(reached, 1), key);
            }
        }
        reached[0] = 1;
        int completed = 0;
        for (List<Key> key : watched) {
            completed += purgatory.checkAndComplete(key.get(0));
        }
        long took = System.nanoTime() - start;
        Utils.closeQuietly(purgatory::shutdown, "purgatory");
        if (completed != keys * waiting) {
            throw new IllegalStateException(completed + " completed");
        }
        return (double) took / completed;
    }

    // ---- requests ------------------------------------------------------------------------------------------

    @FunctionalInterface
    private interface Measure {
        double round(Question question) throws Exception;
    }

    /** A request: its parameters and the number of rounds. */
    private static final class Question {
        private final Map<String, Object> parameters;
        private final int rounds;

        @SuppressWarnings("unchecked")
        Question(Map<?, ?> line) {
            this.parameters = new LinkedHashMap<>((Map<String, Object>) line);
            Object asked = parameters.remove("rounds");
            this.rounds = asked == null ? 1 : ((Number) asked).intValue();
        }

        String text(String name) {
            return (String) parameters.get(name);
        }

        long number(String name, long otherwise) {
            Object value = parameters.get(name);
            return value == null ? otherwise : ((Number) value).longValue();
        }
    }
}
