import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.PartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.RangeAssignor;
import org.apache.kafka.coordinator.group.assignor.SimpleAssignor;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;
import org.apache.kafka.coordinator.group.streams.assignor.AssignmentMemberSpec;
import org.apache.kafka.coordinator.group.streams.assignor.StickyTaskAssignor;
import org.apache.kafka.coordinator.group.streams.assignor.TopologyDescriber;

/**
 * Kafka's server-side assignors, a case a line.
 *
 * <p>Each line of standard input is a JSON object: the assignor, its members and what they subscribe to. The line that
 * comes out is what each member is assigned, or the message of the exception. Maps and sets keep the order of the
 * input, so that nothing depends on hashes but what the assignors do within.
 */
public final class Assignors {
    private static final ObjectMapper JSON = new ObjectMapper();

    private Assignors() {}

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(JSON.writeValueAsString(answer(JSON.readTree(line))));
            out.flush();
        }
    }

    private static Object answer(JsonNode given) {
        try {
            long start = System.nanoTime();
            Object result = given.get("assignor").asText().equals("sticky") ? tasks(given) : partitions(given);
            if (given.has("timed")) {
                return (System.nanoTime() - start) / 1e6;
            }
            return result;
        } catch (RuntimeException error) {
            return error.getClass().getSimpleName() + ": " + error.getMessage();
        }
    }

    // ---- partitions ------------------------------------------------------------------------------------------------

    private static Object partitions(JsonNode given) {
        Map<Uuid, Integer> counts = new LinkedHashMap<>();
        given.get("partitions").properties().forEach(
            each -> counts.put(Uuid.fromString(each.getKey()), each.getValue().asInt()));
        Map<String, MemberSubscriptionAndAssignmentImpl> members = new LinkedHashMap<>();
        Map<Uuid, Map<Integer, String>> owners = new HashMap<>();
        Set<Set<Uuid>> subscriptions = new LinkedHashSet<>();
        for (Map.Entry<String, JsonNode> each : given.get("members").properties()) {
            JsonNode member = each.getValue();
            Set<Uuid> topics = new LinkedHashSet<>();
            member.get("topics").forEach(topic -> topics.add(Uuid.fromString(topic.asText())));
            Map<Uuid, Set<Integer>> assigned = sets(member.get("assigned"));
            assigned.forEach((topic, numbers) -> numbers.forEach(
                number -> owners.computeIfAbsent(topic, any -> new HashMap<>()).put(number, each.getKey())));
            subscriptions.add(topics);
            members.put(each.getKey(), new MemberSubscriptionAndAssignmentImpl(
                text(member, "rack"), text(member, "instance"), topics, new Assignment(assigned)));
        }
        GroupSpecImpl spec = new GroupSpecImpl(
            members,
            subscriptions.size() > 1 ? SubscriptionType.HETEROGENEOUS : SubscriptionType.HOMOGENEOUS,
            owners,
            given.has("assignable") ? Optional.of(sets(given.get("assignable"))) : Optional.empty());
        Map<String, Map<String, Set<Integer>>> result = new TreeMap<>();
        assignor(given.get("assignor").asText()).assign(spec, describer(counts)).members().forEach(
            (member, assignment) -> {
                Map<String, Set<Integer>> sorted = new TreeMap<>();
                assignment.partitions().forEach(
                    (topic, numbers) -> {
                        if (!numbers.isEmpty()) {
                            sorted.put(topic.toString(), new TreeSet<>(numbers));
                        }
                    });
                result.put(member, sorted);
            });
        return result;
    }

    private static PartitionAssignor assignor(String name) {
        return switch (name) {
            case "uniform" -> new UniformAssignor();
            case "range" -> new RangeAssignor();
            case "simple" -> new SimpleAssignor();
            default -> throw new IllegalArgumentException(name);
        };
    }

    private static SubscribedTopicDescriber describer(Map<Uuid, Integer> counts) {
        return new SubscribedTopicDescriber() {
            @Override
            public int numPartitions(Uuid topic) {
                return counts.getOrDefault(topic, -1);
            }

            @Override
            public Set<String> racksForPartition(Uuid topic, int number) {
                throw new UnsupportedOperationException("no assignor of 4.3 asks for racks");
            }
        };
    }

    private static Map<Uuid, Set<Integer>> sets(JsonNode given) {
        Map<Uuid, Set<Integer>> found = new LinkedHashMap<>();
        given.properties().forEach(each -> found.put(Uuid.fromString(each.getKey()), numbers(each.getValue())));
        return found;
    }

    // ---- tasks -----------------------------------------------------------------------------------------------------

    private static Object tasks(JsonNode given) {
        Map<String, AssignmentMemberSpec> members = new LinkedHashMap<>();
        given.get("members").properties().forEach(each -> {
            JsonNode member = each.getValue();
            members.put(each.getKey(), new AssignmentMemberSpec(
                text(member, "instance"), text(member, "rack"), taskSets(member.get("active")),
                taskSets(member.get("standby")), Map.of(), member.get("process").asText(), Map.of(), Map.of(),
                Map.of()));
        });
        Map<String, JsonNode> topology = new LinkedHashMap<>();
        given.get("subtopologies").properties().forEach(each -> topology.put(each.getKey(), each.getValue()));
        Map<String, String> configs = Map.of("num.standby.replicas", given.get("standbys").asText());
        Map<String, Object> result = new TreeMap<>();
        new StickyTaskAssignor().assign(
            new org.apache.kafka.coordinator.group.streams.assignor.GroupSpecImpl(members, configs),
            taskDescriber(topology)).members().forEach((member, tasks) -> result.put(member, Map.of(
                "active", sorted(tasks.activeTasks()),
                "standby", sorted(tasks.standbyTasks()),
                "warmup", sorted(tasks.warmupTasks()))));
        return result;
    }

    private static TopologyDescriber taskDescriber(Map<String, JsonNode> topology) {
        return new TopologyDescriber() {
            @Override
            public List<String> subtopologies() {
                return new ArrayList<>(topology.keySet());
            }

            @Override
            public int maxNumInputPartitions(String subtopology) throws NoSuchElementException {
                return topology.get(subtopology).get("tasks").asInt();
            }

            @Override
            public boolean isStateful(String subtopology) {
                return topology.get(subtopology).get("stateful").asBoolean();
            }
        };
    }

    private static Map<String, Set<Integer>> taskSets(JsonNode given) {
        Map<String, Set<Integer>> found = new LinkedHashMap<>();
        given.properties().forEach(each -> found.put(each.getKey(), numbers(each.getValue())));
        return found;
    }

    private static Map<String, Set<Integer>> sorted(Map<String, Set<Integer>> given) {
        Map<String, Set<Integer>> found = new TreeMap<>();
        given.forEach((name, numbers) -> {
            if (!numbers.isEmpty()) {
                found.put(name, new TreeSet<>(numbers));
            }
        });
        return found;
    }

    // ---- both ------------------------------------------------------------------------------------------------------

    private static Set<Integer> numbers(JsonNode given) {
        Set<Integer> found = new LinkedHashSet<>();
        given.forEach(number -> found.add(number.asInt()));
        return found;
    }

    private static Optional<String> text(JsonNode given, String name) {
        return given.hasNonNull(name) ? Optional.of(given.get(name).asText()) : Optional.empty();
    }
}
