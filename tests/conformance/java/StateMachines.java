import java.io.File;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.checkpoint.LeaderEpochCheckpointFile;
import org.apache.kafka.storage.internals.epoch.LeaderEpochFileCache;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.BatchMetadata;
import org.apache.kafka.storage.internals.log.CompletedTxn;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogOffsetMetadata;
import org.apache.kafka.storage.internals.log.ProducerAppendInfo;
import org.apache.kafka.storage.internals.log.ProducerStateEntry;
import org.apache.kafka.storage.internals.log.ProducerStateManager;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;

/**
 * Kafka's LeaderEpochFileCache and ProducerStateManager, driven by a script.
 *
 * <p>Arguments: "epochs" or "producers", the file of commands, a directory to work in. Each line is a command with
 * numbers behind it; for each one a line comes out: what was answered (or the exception's name), then the state.
 * "new" begins with an empty machine in a directory of its own, named by the count of them.
 */
public final class StateMachines {
    private static final TopicPartition PARTITION = new TopicPartition("t", 0);
    private static final int NONE = -9;

    private final Path root;
    private int machines = 0;
    private File directory;
    private LeaderEpochFileCache epochs;
    private ProducerStateManager producers;

    private StateMachines(Path root) {
        this.root = root;
    }

    public static void main(String[] arguments) throws Exception {
        StateMachines machines = new StateMachines(Path.of(arguments[2]));
        boolean isEpochs = arguments[0].equals("epochs");
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line : Files.readAllLines(Path.of(arguments[1]))) {
            String[] words = line.split(" ");
            long[] numbers = new long[words.length];
            for (int i = 1; i < words.length; i++) {
                numbers[i] = Long.parseLong(words[i]);
            }
            out.println(isEpochs ? machines.epochsStep(words[0], numbers) : machines.producersStep(words[0], numbers));
        }
        out.flush();
        System.exit(0); // the scheduler's thread would keep the process
    }

    private void makeDirectory() {
        directory = root.resolve(Integer.toString(machines++)).toFile();
        directory.mkdirs();
    }

    // ---- leader epochs ----------------------------------------------------------------------------------------

    private String epochsStep(String command, long[] n) throws Exception {
        switch (command) {
            case "new" -> {
                makeDirectory();
                File file = new File(directory, "leader-epoch-checkpoint");
                KafkaScheduler scheduler = new KafkaScheduler(1);
                epochs = new LeaderEpochFileCache(
                        PARTITION, new LeaderEpochCheckpointFile(file, new LogDirFailureChannel(1)), scheduler);
                scheduler.startup();
            }
            case "assign" -> epochs.assign((int) n[1], n[2]);
            case "truncate_end" -> epochs.truncateFromEndAsyncFlush(n[1]);
            case "truncate_start" -> epochs.truncateFromStartAsyncFlush(n[1]);
            case "clear" -> epochs.clear();
            case "ask" -> {
                Map.Entry<Integer, Long> end = epochs.endOffsetFor((int) n[1], n[2]);
                return end.getKey() + " " + end.getValue()
                        + " " + epochs.previousEpoch((int) n[1]).orElse(NONE)
                        + " " + epochs.nextEpoch((int) n[1]).orElse(NONE)
                        + " " + epochs.epochForOffset(n[2]).orElse(NONE)
                        + " " + epochs.epochEntry((int) n[1]).map(entry -> entry.startOffset()).orElse((long) NONE);
            }
            default -> throw new IllegalArgumentException(command);
        }
        return epochs.epochEntries().stream()
                .map(entry -> entry.epoch() + ":" + entry.startOffset())
                .collect(Collectors.joining(" "));
    }

    // ---- producers --------------------------------------------------------------------------------------------

    private String producersStep(String command, long[] n) {
        String answer;
        try {
            answer = producersAnswer(command, n);
        } catch (Exception error) {
            answer = error.getClass().getSimpleName();
        }
        return answer + " | " + producersState();
    }

    private String producersAnswer(String command, long[] n) throws Exception {
        switch (command) {
            case "new" -> {
                makeDirectory();
                open((int) n[1]);
            }
            case "reopen" -> {
                open(producers.producerStateManagerConfig().producerIdExpirationMs());
                producers.truncateAndReload(n[1], n[2], n[3]);
            }
            case "data" -> {
                return data(AppendOrigin.valueOf(origin(n[1])), n);
            }
            case "marker" -> {
                return marker(AppendOrigin.valueOf(origin(n[1])), n);
            }
            case "high_watermark" -> producers.onHighWatermarkUpdated(n[1]);
            case "snapshot" -> producers.takeSnapshot();
            case "reload" -> producers.truncateAndReload(n[1], n[2], n[3]);
            case "expire" -> producers.removeExpiredProducers(n[1]);
            case "log_start" -> producers.onLogStartOffsetIncremented(n[1]);
            case "truncate_fully" -> producers.truncateFullyAndStartAt(n[1]);
            case "delete_before" -> producers.deleteSnapshotsBefore(n[1]);
            case "late" -> {
                return Boolean.toString(producers.hasLateTransaction(n[1]));
            }
            case "stray" -> producers.removeStraySnapshots(
                    Arrays.stream(n).skip(1).boxed().collect(Collectors.toList()));
            default -> throw new IllegalArgumentException(command);
        }
        return "ok";
    }

    private static String origin(long number) {
        return new String[] {"CLIENT", "COORDINATOR", "REPLICATION"}[(int) number];
    }

    private void open(int expirationMs) throws Exception {
        producers = new ProducerStateManager(
                PARTITION, directory, 900_000, new ProducerStateManagerConfig(expirationMs, false), Time.SYSTEM);
    }

    /** origin, producer, epoch, first and last sequence, timestamp, first and last offset, transactional. */
    private String data(AppendOrigin origin, long[] n) {
        short epoch = (short) n[3];
        if (origin == AppendOrigin.CLIENT) {
            Optional<ProducerStateEntry> last = producers.lastEntry(n[2]).filter(e -> e.producerEpoch() == epoch);
            for (BatchMetadata batch : last.map(ProducerStateEntry::batchMetadata).orElse(List.of())) {
                if (batch.firstSeq() == n[4] && batch.lastSeq() == n[5]) {
                    return "duplicate " + batch.lastOffset();
                }
            }
        }
        ProducerAppendInfo info = producers.prepareUpdate(n[2], origin);
        info.appendDataBatch(epoch, (int) n[4], (int) n[5], n[6], new LogOffsetMetadata(n[7]), n[8], n[9] == 1);
        producers.update(info);
        producers.updateMapEndOffset(n[8] + 1);
        return "ok";
    }

    /** origin, producer, epoch, offset, timestamp, coordinator epoch, abort, transaction version. */
    private String marker(AppendOrigin origin, long[] n) {
        ControlRecordType type = n[7] == 1 ? ControlRecordType.ABORT : ControlRecordType.COMMIT;
        ProducerAppendInfo info = producers.prepareUpdate(n[2], origin);
        Optional<CompletedTxn> completed = info.appendEndTxnMarker(
                new EndTransactionMarker(type, (int) n[6]), (short) n[3], n[4], n[5], (short) n[8]);
        producers.update(info);
        String answer = "ok";
        if (completed.isPresent()) {
            CompletedTxn txn = completed.get();
            long stable = producers.lastStableOffset(txn);
            producers.completeTxn(txn);
            answer = "ended " + txn.firstOffset() + " " + txn.lastOffset() + " " + txn.isAborted() + " " + stable;
        }
        producers.updateMapEndOffset(n[4] + 1);
        return answer;
    }

    private String producersState() {
        StringBuilder state = new StringBuilder();
        for (ProducerStateEntry entry : new TreeMap<>(producers.activeProducers()).values()) {
            state.append(entry.producerId()).append(' ').append(entry.producerEpoch()).append(' ')
                    .append(entry.coordinatorEpoch()).append(' ').append(entry.lastTimestamp()).append(' ')
                    .append(entry.currentTxnFirstOffset().orElse(-1)).append(entry.batchMetadata().stream()
                            .map(b -> b.lastSeq() + "," + b.lastOffset() + "," + b.offsetDelta() + "," + b.timestamp())
                            .collect(Collectors.joining(" ", " [", "] ")));
        }
        return state + "unstable " + producers.firstUnstableOffset().map(o -> o.messageOffset).orElse(-1L)
                + " undecided " + producers.firstUndecidedOffset().orElse(-1)
                + " end " + producers.mapEndOffset()
                + " snapshots " + Arrays.stream(directory.list()).sorted().collect(Collectors.joining(" "));
    }
}
