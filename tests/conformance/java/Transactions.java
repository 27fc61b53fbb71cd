import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionListing;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.admin.UpdateFeaturesOptions;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.errors.TransactionalIdNotFoundException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Transactions of the Java producer, consumer and admin client against three nodes that serve.
 *
 * <p>Argument: bootstrap servers. Each line of standard input names a method of this class, with words behind it;
 * "passed" comes out, or "failed" and the reason. In between a method asks for a signal to a node: "kill 2",
 * "start 2", "pause 2" or "resume 2"; a line comes back when that has happened.
 */
public final class Transactions {
    private static final Duration LONG = Duration.ofSeconds(30);

    private final String bootstrap;
    private final Admin admin;
    private final BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    private final PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private int names = 0;

    private Transactions(String bootstrap) {
        this.bootstrap = bootstrap;
        this.admin = Admin.create(Clients.settings(bootstrap));
    }

    public static void main(String[] arguments) throws Exception {
        Transactions transactions = new Transactions(arguments[0]);
        for (String line; (line = transactions.in.readLine()) != null; ) {
            transactions.run(line.split(" "));
        }
        System.exit(0);
    }

    private void run(String[] words) {
        try {
            Class<?>[] types = IntStream.range(1, words.length).mapToObj(i -> String.class).toArray(Class<?>[]::new);
            Object[] rest = java.util.Arrays.copyOfRange(words, 1, words.length);
            getClass().getDeclaredMethod(words[0], types).invoke(this, rest);
            out.println("passed");
        } catch (ReflectiveOperationException | RuntimeException error) {
            Throwable cause = error.getCause() == null ? error : error.getCause();
            cause.printStackTrace();
            out.println("failed " + cause.toString().replace('\n', ' '));
        }
    }

    private void ask(String what, int node) throws Exception {
        out.println(what + " " + node);
        in.readLine();
    }

    // ---- features --------------------------------------------------------------------------------------------

    /** Finalize this level of transaction.version, and wait until the controller shows it. */
    void useTransactionVersion(String level) throws Exception {
        short wanted = Short.parseShort(level);
        FeatureUpdate.UpgradeType type =
                wanted < 2 ? FeatureUpdate.UpgradeType.SAFE_DOWNGRADE : FeatureUpdate.UpgradeType.UPGRADE;
        admin.updateFeatures(
                Map.of("transaction.version", new FeatureUpdate(wanted, type)), new UpdateFeaturesOptions())
                .all().get();
        until("the level is " + level, () -> transactionVersion() == wanted);
    }

    private int transactionVersion() throws Exception {
        var feature = admin.describeFeatures().featureMetadata().get().finalizedFeatures().get("transaction.version");
        return feature == null ? 0 : feature.maxVersionLevel();
    }

    /** A producer that lives through a change of the level goes on, with the new rules from its next transaction. */
    void levelsChangeBetweenTransactions() throws Exception {
        String topic = newTopic(1);
        List<String> expected = new ArrayList<>();
        try (KafkaProducer<String, String> producer = transactional("changing", Map.of("metadata.max.age.ms", 500))) {
            for (String level : List.of("1", "2", "1", "2")) {
                useTransactionVersion(level);
                for (int number = 0; number < 4; number++) {
                    String value = expected.size() + "";
                    producer.beginTransaction();
                    producer.send(new ProducerRecord<>(topic, 0, null, value)).get();
                    producer.commitTransaction();
                    expected.add(value);
                    Thread.sleep(200);
                }
            }
        }
        equal(expected, committed(topic, 1));
    }

    // ---- transactions ----------------------------------------------------------------------------------------

    void readersSeeAllOfACommittedTransactionAndNothingOfAnAbortedOne() throws Exception {
        String topic = newTopic(3);
        List<String> expected = new ArrayList<>();
        List<String> all = new ArrayList<>();
        try (KafkaProducer<String, String> producer = transactional("committed-and-aborted", Map.of())) {
            for (int number = 0; number < 12; number++) {
                String value = String.format("%02d", number);
                producer.beginTransaction();
                write(producer, topic, value, 3);
                if (number % 3 == 2) {
                    producer.flush();
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                    expected.addAll(Collections.nCopies(3, value));
                }
                all.addAll(Collections.nCopies(3, value));
            }
        }
        equal(expected, committed(topic, 3));
        equal(all, values(topic, 3, "read_uncommitted"));
    }

    void anOpenTransactionHidesWhatIsBehindIt() throws Exception {
        String topic = newTopic(1);
        try (KafkaProducer<String, String> producer = transactional("open", Map.of());
                KafkaProducer<String, String> plain = producer(Map.of())) {
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, null, "a")).get();
            plain.send(new ProducerRecord<>(topic, 0, null, "b")).get();
            equal(List.of(), committed(topic, 1));
            producer.commitTransaction();
            equal(List.of("a", "b"), committed(topic, 1));
        }
    }

    void transactionsWithoutRecordsEnd() throws Exception {
        try (KafkaProducer<String, String> producer = transactional("empty", Map.of())) {
            for (int number = 0; number < 3; number++) {
                producer.beginTransaction();
                producer.commitTransaction();
                producer.beginTransaction();
                producer.abortTransaction();
            }
        }
    }

    void recordsAndOffsetsAreCommittedTogether() throws Exception {
        String source = newTopic(1);
        String target = newTopic(1);
        try (KafkaProducer<String, String> plain = producer(Map.of())) {
            for (String value : List.of("a", "b", "c")) {
                plain.send(new ProducerRecord<>(source, 0, null, value)).get();
            }
        }
        TopicPartition at = new TopicPartition(source, 0);
        try (KafkaProducer<String, String> producer = transactional("copier", Map.of());
                KafkaConsumer<String, String> consumer = consumer("read_committed", Map.of("group.id", source))) {
            consumer.subscribe(List.of(source));
            for (int attempt = 0; attempt < 6; attempt++) {
                ConsumerRecord<String, String> record = next(consumer);
                long before = offset(consumer, at);
                equal(record.offset(), before);
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(target, 0, null, record.value()));
                Map<TopicPartition, OffsetAndMetadata> next =
                        Map.of(at, new OffsetAndMetadata(record.offset() + 1, "of attempt " + attempt));
                producer.sendOffsetsToTransaction(next, consumer.groupMetadata());
                if (attempt % 2 == 0) {
                    producer.abortTransaction();
                    equal(before, offset(consumer, at));
                    consumer.seek(at, before);
                } else {
                    producer.commitTransaction();
                    equal(before + 1, offset(consumer, at));
                    equal("of attempt " + attempt, consumer.committed(Set.of(at)).get(at).metadata());
                }
            }
        }
        equal(List.of("a", "b", "c"), committed(target, 1));
    }

    /** A member that a rebalance has replaced cannot commit its offsets (KIP-447). */
    void offsetsOfAnOldGenerationAreRefused() throws Exception {
        String source = newTopic(1);
        TopicPartition at = new TopicPartition(source, 0);
        Map<TopicPartition, OffsetAndMetadata> offsets = Map.of(at, new OffsetAndMetadata(7));
        Map<String, Object> group = Map.of("group.id", source, "session.timeout.ms", 6000);
        try (KafkaProducer<String, String> plain = producer(Map.of())) {
            plain.send(new ProducerRecord<>(source, 0, null, "a")).get();
        }
        try (KafkaProducer<String, String> producer = transactional("old-generation", Map.of())) {
            ConsumerGroupMetadata left;
            try (KafkaConsumer<String, String> consumer = consumer("read_committed", group)) {
                consumer.subscribe(List.of(source));
                next(consumer);
                left = consumer.groupMetadata();
            }
            try (KafkaConsumer<String, String> consumer = consumer("read_committed", group)) {
                consumer.subscribe(List.of(source));
                next(consumer);
                producer.beginTransaction();
                raises(CommitFailedException.class, () -> {
                    producer.sendOffsetsToTransaction(offsets, left);
                    producer.commitTransaction();
                });
                producer.abortTransaction();
                ConsumerGroupMetadata now = consumer.groupMetadata();
                ConsumerGroupMetadata older = new ConsumerGroupMetadata(
                        now.groupId(), now.generationId() - 1, now.memberId(), now.groupInstanceId());
                producer.beginTransaction();
                raises(CommitFailedException.class, () -> {
                    producer.sendOffsetsToTransaction(offsets, older);
                    producer.commitTransaction();
                });
                producer.abortTransaction();
                equal(null, consumer.committed(Set.of(at)).get(at));
                producer.beginTransaction();
                producer.sendOffsetsToTransaction(offsets, new ConsumerGroupMetadata(source));
                producer.commitTransaction();
                equal(7L, offset(consumer, at));
            }
        }
    }

    // ---- fencing and timeouts --------------------------------------------------------------------------------

    void aNewProducerFencesThePreviousOne() throws Exception {
        String topic = newTopic(2);
        for (String doing : List.of("commit", "abort", "send", "begin")) {
            try (KafkaProducer<String, String> zombie = transactional("fenced-" + doing, Map.of())) {
                if (!doing.equals("begin")) {
                    zombie.beginTransaction();
                    zombie.send(new ProducerRecord<>(topic, 0, null, "of the zombie")).get();
                }
                try (KafkaProducer<String, String> successor = transactional("fenced-" + doing, Map.of())) {
                    switch (doing) {
                        case "commit" -> raises(ProducerFencedException.class, zombie::commitTransaction);
                        case "abort" -> raises(ProducerFencedException.class, zombie::abortTransaction);
                        case "send" -> {
                            // A batch of an old epoch is refused with InvalidProducerEpoch, after which the producer
                            // aborts, and learns from its coordinator that it is fenced.
                            Exception refused = raises(ExecutionException.class,
                                    () -> zombie.send(new ProducerRecord<>(topic, 0, null, "late")).get());
                            check(refused.getCause() instanceof InvalidProducerEpochException, refused.toString());
                            raises(ProducerFencedException.class, zombie::abortTransaction);
                        }
                        default -> {
                            zombie.beginTransaction();
                            raises(KafkaException.class, () -> {
                                zombie.send(new ProducerRecord<>(topic, 1, null, "late"));
                                zombie.commitTransaction();
                            });
                        }
                    }
                    successor.beginTransaction();
                    successor.send(new ProducerRecord<>(topic, 1, null, doing)).get();
                    successor.commitTransaction();
                } finally {
                    zombie.close(Duration.ZERO);
                }
            }
        }
        equal(List.of("abort", "begin", "commit", "send"), committed(topic, 2));
    }

    void aTransactionTimesOut() throws Exception {
        String topic = newTopic(1);
        KafkaProducer<String, String> late = transactional("late", Map.of("transaction.timeout.ms", 1500));
        late.beginTransaction();
        late.send(new ProducerRecord<>(topic, 0, null, "late")).get();
        until("it is aborted", () -> describe("late").state() == TransactionState.COMPLETE_ABORT);
        raises(ProducerFencedException.class, late::commitTransaction);
        late.close(Duration.ZERO);
        try (KafkaProducer<String, String> next = transactional("late", Map.of())) {
            next.beginTransaction();
            next.send(new ProducerRecord<>(topic, 0, null, "in time")).get();
            next.commitTransaction();
        }
        equal(List.of("in time"), committed(topic, 1));
        equal(List.of("late", "in time"), values(topic, 1, "read_uncommitted"));
        KafkaException refused = raises(KafkaException.class,
                () -> transactional("for ever", Map.of("transaction.timeout.ms", Integer.MAX_VALUE)));
        check(refused.getMessage().contains("timeout is larger than the maximum"), refused.toString());
    }

    /** A batch of a transaction that has timed out is refused. By its epoch, a producer of version 2 can go on. */
    void aBatchAfterTheTimeoutIsRefused() throws Exception {
        String topic = newTopic(1);
        try (KafkaProducer<String, String> late = transactional("too-late", Map.of("transaction.timeout.ms", 1500))) {
            late.beginTransaction();
            late.send(new ProducerRecord<>(topic, 0, null, "early")).get();
            until("it is aborted", () -> describe("too-late").state() == TransactionState.COMPLETE_ABORT);
            Exception refused = raises(ExecutionException.class,
                    () -> late.send(new ProducerRecord<>(topic, 0, null, "too late")).get());
            check(refused.getCause() instanceof InvalidProducerEpochException, refused.toString());
            if (transactionVersion() < 2) {
                raises(ProducerFencedException.class, late::abortTransaction);
                late.close(Duration.ZERO);
                equal(List.of(), committed(topic, 1));
                return;
            }
            late.abortTransaction();
            late.beginTransaction();
            late.send(new ProducerRecord<>(topic, 0, null, "again")).get();
            late.commitTransaction();
        }
        equal(List.of("again"), committed(topic, 1));
    }

    // ---- errors after which a transaction can be aborted ------------------------------------------------------

    void aRecordThatIsTooLargeCostsItsTransactionOnly() throws Exception {
        String topic = newTopic(1, Map.of("max.message.bytes", "10000"));
        try (KafkaProducer<String, String> producer = transactional("too-large", Map.of())) {
            for (int number = 0; number < 3; number++) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, 0, null, "small"));
                producer.send(new ProducerRecord<>(topic, 0, null, "x".repeat(20_000)));
                KafkaException error = raises(KafkaException.class, producer::commitTransaction);
                check(error instanceof RecordTooLargeException
                        || error.getCause() instanceof RecordTooLargeException, error.toString());
                producer.abortTransaction();
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, 0, null, "after " + number)).get();
                producer.commitTransaction();
            }
        }
        equal(List.of("after 0", "after 1", "after 2"), committed(topic, 1));
    }

    /** A batch whose fate is unknown: the transaction is aborted, and the next one has a greater epoch. */
    void aBatchThatExpiresCostsItsTransactionOnly() throws Exception {
        String topic = newTopic(1);
        Map<String, Object> impatient =
                Map.of("delivery.timeout.ms", 2000, "request.timeout.ms", 1000, "linger.ms", 0);
        try (KafkaProducer<String, String> producer = transactional("impatient", impatient)) {
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, null, "before")).get();
            producer.commitTransaction();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, null, "first")).get();
            short epoch = epochOf("impatient");
            // The leader takes the batch, and no other replica confirms it.
            int leader = leader(topic, 0);
            List<Integer> others = IntStream.rangeClosed(1, 3).filter(each -> each != leader).boxed().toList();
            ExecutionException error;
            try {
                for (int other : others) {
                    ask("pause", other);
                }
                error = raises(ExecutionException.class,
                        () -> producer.send(new ProducerRecord<>(topic, 0, null, "second")).get());
            } finally {
                for (int other : others) {
                    ask("resume", other);
                }
            }
            check(error.getCause() instanceof TimeoutException, error.toString());
            retry(producer::abortTransaction);
            if (transactionVersion() >= 2) {
                commitInTime(producer, topic, "after");
            } else {
                // The client may return from the abort before it has raised its epoch, and begins nothing then.
                producer.close(Duration.ZERO);
                try (KafkaProducer<String, String> successor = transactional("impatient", Map.of())) {
                    commitInTime(successor, topic, "after");
                }
            }
            check(epochOf("impatient") > epoch, "the epoch has risen");
        }
        equal(List.of("before", "after"), committed(topic, 1));
    }

    /** Repeat a transaction with one record until no batch expires. */
    private static void commitInTime(KafkaProducer<String, String> producer, String topic, String value)
            throws Exception {
        until("a transaction is committed", () -> {
            producer.beginTransaction();
            try {
                producer.send(new ProducerRecord<>(topic, 0, null, value)).get();
            } catch (ExecutionException expired) {
                retry(producer::abortTransaction);
                return false;
            }
            retry(producer::commitTransaction);
            return true;
        });
    }

    // ---- nodes that die ---------------------------------------------------------------------------------------

    void transactionsOutliveLeadersAndCoordinators() throws Exception {
        String topic = newTopic(3);
        List<String> expected = new ArrayList<>();
        int aborted = 0;
        try (KafkaProducer<String, String> producer = transactional("outlives", Map.of())) {
            int killed = 0;
            for (int number = 0; number < 24; number++) {
                String value = String.format("%02d", number);
                try {
                    producer.beginTransaction();
                    write(producer, topic, value, 3);
                    if (number % 8 == 4) {
                        if (number > 16) {
                            producer.flush();
                        }
                        killed = number % 16 == 4 ? coordinator("outlives") : leader(topic, 0);
                        ask("kill", killed);
                    }
                    retry(producer::commitTransaction);
                    expected.addAll(Collections.nCopies(3, value));
                } catch (ProducerFencedException error) {
                    throw error;
                } catch (KafkaException error) {
                    System.err.println("aborts " + value + " because of " + error);
                    retry(producer::abortTransaction);
                    aborted++;
                }
                if (number % 8 == 7) {
                    ask("start", killed);
                    killed = 0;
                }
            }
        }
        check(aborted <= 4, aborted + " transactions were aborted");
        equal(expected, committed(topic, 3));
    }

    // ---- the admin client -------------------------------------------------------------------------------------

    void transactionsAreDescribedAndListed() throws Exception {
        String topic = newTopic(3);
        try (KafkaProducer<String, String> producer =
                transactional("described", Map.of("transaction.timeout.ms", 54_321))) {
            TransactionDescription found = describe("described");
            equal(TransactionState.EMPTY, found.state());
            equal(Set.of(), found.topicPartitions());
            producer.beginTransaction();
            write(producer, topic, "a", 2);
            producer.flush();
            found = describe("described");
            equal(TransactionState.ONGOING, found.state());
            equal(54_321L, found.transactionTimeoutMs());
            equal(Set.of(new TopicPartition(topic, 0), new TopicPartition(topic, 1)), found.topicPartitions());
            check(found.coordinatorId() >= 1, "a coordinator");
            long age = System.currentTimeMillis() - found.transactionStartTimeMs().getAsLong();
            check(age > -1000 && age < 60_000, "it began " + age + " ms ago");
            List<ProducerState> states = producers(topic, 1);
            equal(1, states.size());
            equal(found.producerId(), states.get(0).producerId());
            equal(found.producerEpoch(), states.get(0).producerEpoch());
            equal(0L, states.get(0).currentTransactionStartOffset().getAsLong());
            equal(0, states.get(0).lastSequence());
            long id = found.producerId();

            check(listed(new ListTransactionsOptions()).containsKey("described"), "listed");
            equal(Set.of("described"),
                    listed(new ListTransactionsOptions().filterProducerIds(Set.of(id))).keySet());
            check(listed(new ListTransactionsOptions().filterStates(Set.of(TransactionState.ONGOING)))
                    .containsKey("described"), "Ongoing");
            check(!listed(new ListTransactionsOptions().filterStates(Set.of(TransactionState.EMPTY)))
                    .containsKey("described"), "not Empty");
            check(!listed(new ListTransactionsOptions().filterOnDuration(1_000_000)).containsKey("described"), "new");
            equal(Set.of("described"),
                    listed(new ListTransactionsOptions().filterOnTransactionalIdPattern("descr.*")).keySet());

            producer.commitTransaction();
            until("it is complete", () -> describe("described").state() == TransactionState.COMPLETE_COMMIT);
            check(producers(topic, 1).get(0).currentTransactionStartOffset().isEmpty(), "no transaction is open");
        }
        Throwable missing = raises(ExecutionException.class, () -> describe("unheard of")).getCause();
        check(missing instanceof TransactionalIdNotFoundException, missing.toString());
    }

    void anAdminFencesProducers() throws Exception {
        String topic = newTopic(1);
        try (KafkaProducer<String, String> producer = transactional("fenced-by-admin", Map.of())) {
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, null, "a")).get();
            admin.fenceProducers(List.of("fenced-by-admin")).all().get();
            raises(ProducerFencedException.class, producer::commitTransaction);
            producer.close(Duration.ZERO);
        }
        equal(List.of(), committed(topic, 1));
        try (KafkaProducer<String, String> producer = transactional("terminated", Map.of())) {
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, null, "b")).get();
            admin.forceTerminateTransaction("terminated").result().get();
            raises(ProducerFencedException.class, producer::commitTransaction);
            producer.close(Duration.ZERO);
        }
        equal(List.of(), committed(topic, 1));
        equal(2, values(topic, 1, "read_uncommitted").size());
    }

    /** A marker that an admin writes ends the transaction on its partition; readers go on. */
    void anAdminAbortsATransactionOfAPartition() throws Exception {
        String topic = newTopic(1);
        TopicPartition at = new TopicPartition(topic, 0);
        KafkaProducer<String, String> producer = transactional("hangs", Map.of());
        producer.beginTransaction();
        producer.send(new ProducerRecord<>(topic, 0, null, "a")).get();
        try (KafkaProducer<String, String> plain = producer(Map.of())) {
            plain.send(new ProducerRecord<>(topic, 0, null, "b")).get();
        }
        ProducerState state = producers(topic, 0).stream()
                .filter(each -> each.currentTransactionStartOffset().isPresent()).findFirst().orElseThrow();
        admin.abortTransaction(new AbortTransactionSpec(at, state.producerId(), (short) state.producerEpoch(),
                state.coordinatorEpoch().orElse(0))).all().get();
        equal(List.of("b"), committed(topic, 1));
        producer.close(Duration.ZERO);
    }

    // ---- means ------------------------------------------------------------------------------------------------

    private Properties settings(Map<String, ?> more) {
        Properties settings = new Properties();
        settings.putAll(Clients.settings(bootstrap));
        settings.putAll(more);
        return settings;
    }

    private KafkaProducer<String, String> producer(Map<String, ?> more) {
        return new KafkaProducer<>(settings(more), new StringSerializer(), new StringSerializer());
    }

    /** A producer that has fenced its predecessors. */
    private KafkaProducer<String, String> transactional(String id, Map<String, ?> more) {
        Map<String, Object> all = new HashMap<>(more);
        all.put("transactional.id", id);
        KafkaProducer<String, String> producer = producer(all);
        try {
            producer.initTransactions();
        } catch (KafkaException error) {
            producer.close(Duration.ZERO);
            throw error;
        }
        return producer;
    }

    private KafkaConsumer<String, String> consumer(String isolation, Map<String, ?> more) {
        Map<String, Object> all = new HashMap<>(more);
        all.put("isolation.level", isolation);
        all.put("auto.offset.reset", "earliest");
        all.put("enable.auto.commit", "false");
        all.put("max.poll.records", 1);
        return new KafkaConsumer<>(settings(all), new StringDeserializer(), new StringDeserializer());
    }

    /**
     * Writes the value to each partition, and waits until it is there. A commit that comes microseconds after the first
     * record of a transaction may overtake it in the client: its sender looks for records before it looks for the end.
     */
    private static void write(KafkaProducer<String, String> producer, String topic, String value, int partitions) {
        for (int partition = 0; partition < partitions; partition++) {
            producer.send(new ProducerRecord<>(topic, partition, null, value));
        }
        producer.flush();
    }

    private static ConsumerRecord<String, String> next(KafkaConsumer<String, String> consumer) throws Exception {
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        until("there is a record", () -> {
            consumer.poll(Duration.ofMillis(200)).forEach(found::add);
            return !found.isEmpty();
        });
        return found.get(0);
    }

    private static long offset(KafkaConsumer<String, String> consumer, TopicPartition at) {
        OffsetAndMetadata found = consumer.committed(Set.of(at)).get(at);
        return found == null ? 0 : found.offset();
    }

    private List<String> committed(String topic, int partitions) throws Exception {
        return values(topic, partitions, "read_committed");
    }

    /** The values up to the end that this isolation level has now: partition by partition, then sorted by value. */
    private List<String> values(String topic, int partitions, String isolation) throws Exception {
        List<TopicPartition> all =
                IntStream.range(0, partitions).mapToObj(each -> new TopicPartition(topic, each)).toList();
        Map<TopicPartition, List<String>> found = new TreeMap<>(
                (a, b) -> Integer.compare(a.partition(), b.partition()));
        try (KafkaConsumer<String, String> consumer = consumer(isolation, Map.of())) {
            consumer.assign(all);
            consumer.seekToBeginning(all);
            Map<TopicPartition, Long> ends = consumer.endOffsets(all);
            until("all is read", () -> {
                consumer.poll(Duration.ofMillis(100)).forEach(record -> found
                        .computeIfAbsent(new TopicPartition(topic, record.partition()), each -> new ArrayList<>())
                        .add(record.value()));
                return all.stream().allMatch(each -> consumer.position(each) >= ends.get(each));
            });
        }
        if (partitions == 1) {
            return found.getOrDefault(all.get(0), List.of());
        }
        return found.values().stream().flatMap(Collection::stream).sorted().toList();
    }

    private String newTopic(int partitions) throws Exception {
        return newTopic(partitions, Map.of());
    }

    private String newTopic(int partitions, Map<String, String> more) throws Exception {
        String name = "topic-" + ++names;
        Map<String, String> settings = new HashMap<>(more);
        settings.put("min.insync.replicas", "2");
        admin.createTopics(List.of(new NewTopic(name, Optional.of(partitions), Optional.of((short) 3))
                .configs(settings))).all().get();
        return name;
    }

    private int leader(String topic, int partition) throws Exception {
        return admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic)
                .partitions().get(partition).leader().id();
    }

    private TransactionDescription describe(String id) throws Exception {
        return admin.describeTransactions(List.of(id)).description(id).get();
    }

    private int coordinator(String id) throws Exception {
        return describe(id).coordinatorId();
    }

    private short epochOf(String id) throws Exception {
        return (short) describe(id).producerEpoch();
    }

    private List<ProducerState> producers(String topic, int partition) throws Exception {
        TopicPartition at = new TopicPartition(topic, partition);
        return admin.describeProducers(List.of(at)).partitionResult(at).get().activeProducers();
    }

    private Map<String, TransactionListing> listed(ListTransactionsOptions options) throws Exception {
        return admin.listTransactions(options).all().get().stream()
                .collect(Collectors.toMap(TransactionListing::transactionalId, each -> each));
    }

    // ---- assertions -------------------------------------------------------------------------------------------

    private interface Step {
        void run() throws Exception;
    }

    private static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    private static void equal(Object expected, Object found) {
        check(expected == null ? found == null : expected.equals(found), "expected " + expected + ", found " + found);
    }

    private static <E extends Exception> E raises(Class<E> kind, Step step) throws Exception {
        try {
            step.run();
        } catch (Exception error) {
            if (kind.isInstance(error)) {
                return kind.cast(error);
            }
            throw error;
        }
        throw new AssertionError("expected " + kind.getSimpleName());
    }

    /** Repeat what timed out, as the client's documentation allows. */
    private static void retry(Step step) throws Exception {
        long deadline = System.nanoTime() + LONG.toNanos();
        while (true) {
            try {
                step.run();
                return;
            } catch (TimeoutException error) {
                check(System.nanoTime() < deadline, "not done in time: " + error);
            }
        }
    }

    private static void until(String what, Callable<Boolean> holds) throws Exception {
        long deadline = System.nanoTime() + LONG.toNanos();
        while (!holds.call()) {
            check(System.nanoTime() < deadline, "not true in time: " + what);
            Thread.sleep(20);
        }
    }
}
