import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Consumers of the Java client in groups, against three nodes that serve.
 *
 * <p>Arguments: bootstrap servers, and the replicas of topics. Each line of standard input names a method of this class and a group protocol;
 * "passed" comes out, or "failed" and the reason. In between a method asks for a signal to a node: "kill 2" or
 * "start 2"; a line comes back when that has happened.
 */
public final class Consumers {
    private static final Duration LONG = Duration.ofSeconds(60);
    private static final Duration BRIEF = Duration.ofMillis(100);

    private final String bootstrap;
    private final short replicas;
    private final Admin admin;
    private final BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    private final PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private int names = 0;
    private String protocol;

    private Consumers(String bootstrap, short replicas) {
        this.bootstrap = bootstrap;
        this.replicas = replicas;
        this.admin = Admin.create(Clients.settings(bootstrap));
    }

    public static void main(String[] arguments) throws Exception {
        Consumers consumers = new Consumers(arguments[0], Short.parseShort(arguments[1]));
        for (String line; (line = consumers.in.readLine()) != null; ) {
            consumers.run(line.split(" "));
        }
        System.exit(0);
    }

    private void run(String[] words) {
        try {
            protocol = words[1];
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

    void listenersHearOfRevocationsFirst() throws Exception {
        String topic = newTopic(4), group = newGroup();
        Events heard = new Events();
        try (KafkaConsumer<String, String> first = consumer(group, Map.of())) {
            first.subscribe(List.of(topic), heard);
            until(() -> first.assignment().size() == 4, first);
            try (KafkaConsumer<String, String> second = consumer(group, Map.of())) {
                second.subscribe(List.of(topic));
                until(() -> first.assignment().size() == 2 && second.assignment().size() == 2, first, second);
                Set<TopicPartition> both = new TreeSet<>(java.util.Comparator.comparing(TopicPartition::partition));
                both.addAll(first.assignment());
                both.addAll(second.assignment());
                equal(4, both.size());
            }
            until(() -> first.assignment().size() == 4, first);
        }
        equal(List.of("+4", "-2", "+2", "-4"), heard.withoutEmpty());
    }

    void commitsAreReadBack() throws Exception {
        String topic = newTopic(2), group = newGroup();
        produce(topic, 2, 20);
        TopicPartition zero = new TopicPartition(topic, 0), one = new TopicPartition(topic, 1);
        try (KafkaConsumer<String, String> consumer = consumer(group, Map.of())) {
            consumer.subscribe(List.of(topic));
            equal(20, take(consumer, 20).size());
            consumer.commitSync(Map.of(zero, new OffsetAndMetadata(4, "here")));
            AtomicInteger called = new AtomicInteger();
            consumer.commitAsync(Map.of(one, new OffsetAndMetadata(7)), (offsets, error) -> {
                if (error != null) {
                    throw new IllegalStateException(error);
                }
                called.incrementAndGet();
            });
            until(() -> called.get() == 1, consumer);
            Map<TopicPartition, OffsetAndMetadata> read = consumer.committed(Set.of(zero, one), LONG);
            equal(4L, read.get(zero).offset());
            equal("here", read.get(zero).metadata());
            equal(7L, read.get(one).offset());
        }
        try (KafkaConsumer<String, String> next = consumer(group, Map.of())) {
            next.subscribe(List.of(topic));
            equal(9, take(next, 9).size());
            next.commitSync(LONG);
            equal(10L, next.committed(Set.of(zero), LONG).get(zero).offset());
        }
    }

    void aStaticMemberComesBackWithoutARebalance() throws Exception {
        String topic = newTopic(4), group = newGroup();
        Map<String, Object> fixed = Map.of("group.instance.id", "fixed");
        Events heard = new Events();
        try (KafkaConsumer<String, String> other = consumer(group, Map.of("group.instance.id", "other"))) {
            other.subscribe(List.of(topic), heard);
            KafkaConsumer<String, String> before = consumer(group, fixed);
            before.subscribe(List.of(topic));
            until(() -> other.assignment().size() == 2 && before.assignment().size() == 2, other, before);
            Set<TopicPartition> mine = Set.copyOf(before.assignment());
            before.close(CloseOptions.timeout(LONG));
            int events = heard.withoutEmpty().size();
            try (KafkaConsumer<String, String> after = consumer(group, fixed)) {
                after.subscribe(List.of(topic));
                until(() -> after.assignment().size() == 2, other, after);
                equal(mine, Set.copyOf(after.assignment()));
            }
            equal(events, heard.withoutEmpty().size());
        }
    }

    void aConsumerSaysWhetherItLeaves() throws Exception {
        String topic = newTopic(4), group = newGroup();
        try (KafkaConsumer<String, String> other = consumer(group, Map.of())) {
            other.subscribe(List.of(topic));
            KafkaConsumer<String, String> leaving = consumer(group, Map.of("group.instance.id", "leaves"));
            leaving.subscribe(List.of(topic));
            until(() -> other.assignment().size() == 2 && leaving.assignment().size() == 2, other, leaving);
            leaving.close(CloseOptions.groupMembershipOperation(CloseOptions.GroupMembershipOperation.LEAVE_GROUP));
            equal(1, members(group));
            until(() -> other.assignment().size() == 4, other);
            KafkaConsumer<String, String> staying = consumer(group, Map.of());
            staying.subscribe(List.of(topic));
            until(() -> other.assignment().size() == 2 && staying.assignment().size() == 2, other, staying);
            staying.close(CloseOptions.groupMembershipOperation(
                CloseOptions.GroupMembershipOperation.REMAIN_IN_GROUP));
            // The client of the consumer protocol lets a member that is not static leave all the same.
            equal(protocol.equals("classic") ? 2 : 1, members(group));
            until(() -> other.assignment().size() == 4, other);
        }
    }

    void theServerAssignsAsItIsAsked() throws Exception {
        String left = newTopic(3), right = newTopic(3);
        for (String assignor : List.of("range", "uniform")) {
            String group = newGroup();
            Map<String, Object> wanted = Map.of("group.remote.assignor", assignor);
            try (KafkaConsumer<String, String> first = consumer(group, wanted);
                    KafkaConsumer<String, String> second = consumer(group, wanted)) {
                first.subscribe(List.of(left, right));
                second.subscribe(List.of(left, right));
                int larger = assignor.equals("range") ? 4 : 3;
                until(() -> Math.max(first.assignment().size(), second.assignment().size()) == larger
                    && first.assignment().size() + second.assignment().size() == 6, first, second);
                if (assignor.equals("range")) {
                    for (KafkaConsumer<String, String> each : List.of(first, second)) {
                        equal(numbers(each, left), numbers(each, right));
                    }
                }
            }
        }
    }

    void aPatternFindsNewTopics() throws Exception {
        String topic = newTopic(2), group = newGroup();
        try (KafkaConsumer<String, String> consumer = consumer(group, Map.of())) {
            consumer.subscribe(new SubscriptionPattern(topic + "(-\\d)?"));
            until(() -> consumer.assignment().size() == 2, consumer);
            admin.createTopics(List.of(new NewTopic(topic + "-1", 3, replicas))).all().get();
            admin.createTopics(List.of(new NewTopic(topic + "-none", 3, replicas))).all().get();
            until(() -> consumer.assignment().size() == 5, consumer);
        }
    }

    void aGroupOutlivesItsCoordinator() throws Exception {
        String topic = newTopic(4), group = newGroup();
        produce(topic, 4, 40);
        try (KafkaConsumer<String, String> first = consumer(group, Map.of());
                KafkaConsumer<String, String> second = consumer(group, Map.of())) {
            first.subscribe(List.of(topic));
            second.subscribe(List.of(topic));
            until(() -> first.assignment().size() == 2 && second.assignment().size() == 2, first, second);
            first.commitSync(LONG);
            int coordinator = described(group).coordinator().id();
            ask("kill", coordinator);
            try {
                until(() -> committed(first) && committed(second), first, second);
                until(() -> first.assignment().size() == 2 && second.assignment().size() == 2, first, second);
            } finally {
                ask("start", coordinator);
            }
        }
    }

    // ---- helpers ---------------------------------------------------------------------------------------------

    /** What a listener hears: "+2" for two partitions assigned, "-2" revoked, "!2" lost. */
    private static final class Events implements ConsumerRebalanceListener {
        private final List<String> heard = new ArrayList<>();

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            heard.add("+" + partitions.size());
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            heard.add("-" + partitions.size());
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            heard.add("!" + partitions.size());
        }

        List<String> withoutEmpty() {
            return heard.stream().filter(each -> !each.endsWith("0")).collect(Collectors.toList());
        }
    }

    private KafkaConsumer<String, String> consumer(String group, Map<String, Object> more) {
        Map<String, Object> settings = Clients.settings(bootstrap);
        settings.putAll(Map.of(
            "group.id", group,
            "group.protocol", protocol,
            "enable.auto.commit", false,
            "auto.offset.reset", "earliest",
            "metadata.max.age.ms", 1000));
        if (protocol.equals("classic")) {
            settings.put("session.timeout.ms", 6000);
            settings.put("heartbeat.interval.ms", 300);
            settings.put("partition.assignment.strategy",
                "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
        }
        settings.putAll(more);
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    @SafeVarargs
    private static void until(Callable<Boolean> isSo, KafkaConsumer<String, String>... consumers) throws Exception {
        long end = System.nanoTime() + LONG.toNanos();
        while (!isSo.call()) {
            if (System.nanoTime() > end) {
                List<Object> now = new ArrayList<>();
                for (KafkaConsumer<String, String> each : consumers) {
                    now.add(each.assignment());
                }
                throw new IllegalStateException("it did not come to be; assigned: " + now);
            }
            for (KafkaConsumer<String, String> each : consumers) {
                each.poll(BRIEF);
            }
        }
    }

    private static List<String> take(KafkaConsumer<String, String> consumer, int count) throws Exception {
        List<String> values = new ArrayList<>();
        long end = System.nanoTime() + LONG.toNanos();
        while (values.size() < count && System.nanoTime() < end) {
            for (ConsumerRecord<String, String> record : consumer.poll(BRIEF)) {
                values.add(record.value());
            }
        }
        return values;
    }

    private static boolean committed(KafkaConsumer<String, String> consumer) {
        try {
            consumer.commitSync(Duration.ofSeconds(5));
            return true;
        } catch (org.apache.kafka.common.errors.RetriableException
                | org.apache.kafka.clients.consumer.CommitFailedException error) {
            return false;
        }
    }

    private static Set<Integer> numbers(KafkaConsumer<String, String> consumer, String topic) {
        return consumer.assignment().stream().filter(each -> each.topic().equals(topic))
            .map(TopicPartition::partition).collect(Collectors.toSet());
    }

    private org.apache.kafka.clients.admin.ConsumerGroupDescription described(String group) throws Exception {
        return admin.describeConsumerGroups(List.of(group)).all().get().get(group);
    }

    private int members(String group) throws Exception {
        return described(group).members().size();
    }

    private String newTopic(int partitions) throws Exception {
        String name = "consumed-" + protocol + names++;
        admin.createTopics(List.of(new NewTopic(name, partitions, replicas))).all().get();
        return name;
    }

    private String newGroup() {
        return "group-" + protocol + names++;
    }

    private void produce(String topic, int partitions, int count) throws Exception {
        Map<String, Object> settings = Clients.settings(bootstrap);
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            IntStream.range(0, count).forEach(
                n -> producer.send(new ProducerRecord<>(topic, n % partitions, null, Integer.toString(n))));
        }
    }

    private static void equal(Object expected, Object found) {
        if (!expected.equals(found)) {
            throw new IllegalStateException("expected " + expected + ", found " + found);
        }
    }
}
