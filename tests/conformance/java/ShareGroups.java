import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Share consumers of the Java client against three nodes that serve.
 *
 * <p>Argument: bootstrap servers. Each line of standard input names a method of this class; "passed" comes out, or
 * "failed" and the reason. In between a method asks for a signal to a node: "kill 2" or "start 2"; a line comes back
 * when that has happened.
 */
public final class ShareGroups {
    private static final Duration LONG = Duration.ofSeconds(40);

    private final String bootstrap;
    private final Admin admin;
    private final BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    private final PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private int names = 0;

    private ShareGroups(String bootstrap) {
        this.bootstrap = bootstrap;
        this.admin = Admin.create(Clients.settings(bootstrap));
    }

    public static void main(String[] arguments) throws Exception {
        ShareGroups groups = new ShareGroups(arguments[0]);
        for (String line; (line = groups.in.readLine()) != null; ) {
            groups.run(line.split(" "));
        }
        System.exit(0);
    }

    private void run(String[] words) {
        try {
            getClass().getDeclaredMethod(words[0]).invoke(this);
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

    // ---- cases -----------------------------------------------------------------------------------------------

    void implicitAcknowledgement() throws Exception {
        String topic = newTopic(3), group = newGroup();
        produce(topic, 3, 60);
        try (KafkaShareConsumer<String, String> consumer = consumer(group, Map.of())) {
            consumer.subscribe(List.of(topic));
            equal(values(60), take(consumer, 60, AcknowledgeType.ACCEPT, 1));
            produce(topic, 3, 10);
            equal(values(10), take(consumer, 10, AcknowledgeType.ACCEPT, 1));
        }
    }

    void releasedRecordsComeAgainAndRejectedOnesDoNot() throws Exception {
        String topic = newTopic(1), group = newGroup();
        produce(topic, 1, 9);
        try (KafkaShareConsumer<String, String> consumer = explicit(group, Map.of())) {
            consumer.subscribe(List.of(topic));
            List<String> again = new ArrayList<>();
            int seen = 0;
            while (seen < 9) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(1))) {
                    equal(1, (int) record.deliveryCount().get());
                    int number = (int) record.offset();
                    if (number % 3 == 1) {
                        again.add(record.value());
                    }
                    consumer.acknowledge(record, List.of(
                        AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT).get(number % 3));
                    seen++;
                }
                stored(consumer.commitSync(LONG));
            }
            Collections.sort(again);
            equal(again, take(consumer, 3, AcknowledgeType.ACCEPT, 2));
            equal(0, consumer.poll(Duration.ofSeconds(1)).count());
        }
    }

    void aRecordIsDeliveredAtMostFiveTimes() throws Exception {
        String topic = newTopic(1), group = newGroup();
        produce(topic, 1, 1);
        try (KafkaShareConsumer<String, String> consumer = explicit(group, Map.of())) {
            consumer.subscribe(List.of(topic));
            for (int count = 1; count <= 5; count++) {
                equal(values(1), take(consumer, 1, AcknowledgeType.RELEASE, count));
            }
            equal(0, consumer.poll(Duration.ofSeconds(2)).count());
        }
    }

    void twoMembersShareARecordEach() throws Exception {
        String topic = newTopic(1), group = newGroup();
        Map<String, Object> one = Map.of("max.poll.records", 1, "share.acquire.mode", "record_limit");
        produce(topic, 1, 20);
        try (KafkaShareConsumer<String, String> first = explicit(group, one);
                KafkaShareConsumer<String, String> second = explicit(group, one)) {
            first.subscribe(List.of(topic));
            second.subscribe(List.of(topic));
            Map<String, Integer> seen = new TreeMap<>();
            for (int rounds = 0; seen.size() < 20 && rounds < 200; rounds++) {
                for (KafkaShareConsumer<String, String> each : List.of(first, second)) {
                    for (ConsumerRecord<String, String> record : each.poll(Duration.ofMillis(500))) {
                        seen.merge(record.value(), 1, Integer::sum);
                        each.acknowledge(record);
                    }
                    stored(each.commitSync(LONG));
                }
            }
            equal(values(20), new ArrayList<>(seen.keySet()));
            equal(20, seen.values().stream().mapToInt(Integer::intValue).sum());
        }
    }

    void aMemberThatLeavesFreesItsRecords() throws Exception {
        String topic = newTopic(1), group = newGroup();
        produce(topic, 1, 5);
        try (KafkaShareConsumer<String, String> first = explicit(group, Map.of())) {
            first.subscribe(List.of(topic));
            int count = 0;
            while (count == 0) {
                count = first.poll(Duration.ofSeconds(1)).count();
            }
        }
        try (KafkaShareConsumer<String, String> second = explicit(group, Map.of())) {
            second.subscribe(List.of(topic));
            equal(values(5), take(second, 5, AcknowledgeType.ACCEPT, -1));
        }
    }

    void aRenewedRecordStaysWithItsMember() throws Exception {
        String topic = newTopic(1), group = newGroup();
        produce(topic, 1, 3);
        try (KafkaShareConsumer<String, String> consumer = explicit(group, Map.of())) {
            consumer.subscribe(List.of(topic));
            equal(values(3), take(consumer, 3, AcknowledgeType.RENEW, 1));
            equal(30000, (int) consumer.acquisitionLockTimeoutMs().get());
            // The client gives renewed records again, from its memory.
            equal(values(3), take(consumer, 3, AcknowledgeType.ACCEPT, 1));
            produce(topic, 1, 2);
            equal(values(2), take(consumer, 2, AcknowledgeType.ACCEPT, 1));
        }
    }

    void aBatchIsDividedWhereRecordsAreLimited() throws Exception {
        String topic = newTopic(1), group = newGroup();
        try (KafkaProducer<String, String> producer = producer(Map.of("linger.ms", 5000))) {
            for (int number = 0; number < 20; number++) {
                producer.send(new ProducerRecord<>(topic, 0, null, value(number)));
            }
        }
        Map<String, Object> limited = Map.of("share.acquire.mode", "record_limit", "max.poll.records", 5);
        try (KafkaShareConsumer<String, String> first = explicit(group, limited);
                KafkaShareConsumer<String, String> second = explicit(group, limited)) {
            first.subscribe(List.of(topic));
            List<Long> mine = offsets(first);
            equal(List.of(0L, 1L, 2L, 3L, 4L), mine);
            second.subscribe(List.of(topic));
            equal(List.of(5L, 6L, 7L, 8L, 9L), offsets(second));
        }
        try (KafkaShareConsumer<String, String> whole = explicit(group, Map.of("max.poll.records", 5))) {
            whole.subscribe(List.of(topic));
            equal(values(20), take(whole, 20, AcknowledgeType.ACCEPT, -1));
        }
    }

    void transactionsAreReadAsTheGroupWants() throws Exception {
        String topic = newTopic(1), group = newGroup();
        configure(group, "share.isolation.level", "read_committed");
        Map<String, Object> settings = new HashMap<>(Map.of("transactional.id", topic));
        try (KafkaProducer<String, String> producer = producer(settings)) {
            producer.initTransactions();
            for (int number = 0; number < 6; number++) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, 0, null, value(number / 2))).get();
                if (number % 2 == 0) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
            }
        }
        try (KafkaShareConsumer<String, String> consumer = explicit(group, Map.of())) {
            consumer.subscribe(List.of(topic));
            equal(values(3), take(consumer, 3, AcknowledgeType.ACCEPT, 1));
            equal(0, consumer.poll(Duration.ofSeconds(1)).count());
        }
    }

    void recordsOutliveALeader() throws Exception {
        String topic = newTopic(1), group = newGroup();
        try (KafkaShareConsumer<String, String> consumer = explicit(group, Map.of())) {
            consumer.subscribe(List.of(topic));
            produce(topic, 1, 10);
            equal(values(10), take(consumer, 10, AcknowledgeType.ACCEPT, 1));
            int leader = admin.describeTopics(List.of(topic)).allTopicNames().get()
                .get(topic).partitions().get(0).leader().id();
            ask("kill", leader);
            produce(topic, 1, 10);
            equal(values(10), take(consumer, 10, AcknowledgeType.ACCEPT, -1));
            ask("start", leader);
        }
    }

    /** Each of the nodes coordinates the group, its states or neither; none of them is needed. */
    void recordsOutliveEachNode() throws Exception {
        String topic = newTopic(3), group = newGroup();
        try (KafkaShareConsumer<String, String> consumer = explicit(group, Map.of())) {
            consumer.subscribe(List.of(topic));
            for (int node = 1; node <= 3; node++) {
                ask("kill", node);
                produce(topic, 3, 10);
                equal(values(10), take(consumer, 10, AcknowledgeType.ACCEPT, -1));
                ask("start", node);
            }
        }
    }

    // ---- helpers ---------------------------------------------------------------------------------------------

    /** Take records until there are as many; a delivery count of -1 stands for any. */
    private static List<String> take(
            KafkaShareConsumer<String, String> consumer, int count, AcknowledgeType type, int deliveries) {
        List<String> found = new ArrayList<>();
        long end = System.nanoTime() + LONG.toNanos();
        while (found.size() < count && System.nanoTime() < end) {
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(1))) {
                if (deliveries >= 0) {
                    equal(deliveries, (int) record.deliveryCount().get());
                }
                found.add(record.value());
                try {
                    consumer.acknowledge(record, type);
                } catch (IllegalStateException implicit) {
                    continue;
                }
            }
            stored(consumer.commitSync(LONG));
        }
        Collections.sort(found);
        return found;
    }

    private static List<Long> offsets(KafkaShareConsumer<String, String> consumer) {
        List<Long> found = new ArrayList<>();
        long end = System.nanoTime() + LONG.toNanos();
        while (found.isEmpty() && System.nanoTime() < end) {
            consumer.poll(Duration.ofSeconds(1)).forEach(record -> found.add(record.offset()));
        }
        return found;
    }

    private static void stored(Map<?, java.util.Optional<org.apache.kafka.common.KafkaException>> results) {
        results.values().forEach(each -> each.ifPresent(error -> {
            throw error;
        }));
    }

    private KafkaShareConsumer<String, String> explicit(String group, Map<String, Object> more) {
        Map<String, Object> settings = new HashMap<>(more);
        settings.put("share.acknowledgement.mode", "explicit");
        return consumer(group, settings);
    }

    private KafkaShareConsumer<String, String> consumer(String group, Map<String, Object> more) {
        Map<String, Object> settings = Clients.settings(bootstrap);
        settings.put("group.id", group);
        settings.putAll(more);
        return new KafkaShareConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    private KafkaProducer<String, String> producer(Map<String, Object> more) {
        Map<String, Object> settings = Clients.settings(bootstrap);
        settings.put("acks", "all");
        settings.putAll(more);
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    private void produce(String topic, int partitions, int count) throws Exception {
        try (KafkaProducer<String, String> producer = producer(Map.of())) {
            for (int number = 0; number < count; number++) {
                producer.send(new ProducerRecord<>(topic, number % partitions, null, value(number))).get();
            }
        }
    }

    private static String value(int number) {
        return String.format("%04d", number);
    }

    private static List<String> values(int count) {
        return IntStream.range(0, count).mapToObj(ShareGroups::value).toList();
    }

    private String newTopic(int partitions) throws Exception {
        String name = "topic-" + names++;
        admin.createTopics(List.of(new NewTopic(name, partitions, (short) 3))).all().get();
        return name;
    }

    private String newGroup() throws Exception {
        String name = "group-" + names++;
        configure(name, "share.auto.offset.reset", "earliest");
        return name;
    }

    private void configure(String group, String name, String value) throws Exception {
        admin.incrementalAlterConfigs(Map.of(
            new ConfigResource(ConfigResource.Type.GROUP, group),
            List.of(new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET)))).all().get();
    }

    private static void equal(Object expected, Object found) {
        if (!expected.equals(found)) {
            throw new AssertionError("expected " + expected + ", found " + found);
        }
    }
}
