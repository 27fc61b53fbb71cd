import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

/**
 * Kafka's StandardAuthorizer, a set of rules a line.
 *
 * <p>Each line of standard input is a JSON object with the rules, and the questions to be answered by them. The line
 * that comes out has an answer for each question. A question without a name is about any resource of its type.
 */
public final class Authorizer {
    private static final ObjectMapper JSON = new ObjectMapper();

    private Authorizer() {}

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(JSON.writeValueAsString(answers(JSON.readTree(line))));
            out.flush();
        }
    }

    private static List<Boolean> answers(JsonNode given) throws Exception {
        List<Boolean> answers = new ArrayList<>();
        try (StandardAuthorizer authorizer = new StandardAuthorizer();
                Metrics metrics = new Metrics()) {
            Map<String, String> settings = new HashMap<>();
            settings.put("node.id", "1");
            settings.put("super.users", given.get("super").asText());
            settings.put("allow.everyone.if.no.acl.found", given.get("everyone").asText());
            authorizer.configure(settings);
            authorizer.withPluginMetrics(new PluginMetricsImpl(metrics, Map.of()));
            Map<Uuid, StandardAcl> rules = new HashMap<>();
            for (JsonNode rule : given.get("rules")) {
                rules.put(Uuid.randomUuid(), rule(rule));
            }
            authorizer.loadSnapshot(rules);
            authorizer.completeInitialLoad();
            for (JsonNode question : given.get("questions")) {
                answers.add(answer(authorizer, question));
            }
        }
        return answers;
    }

    private static StandardAcl rule(JsonNode rule) {
        return new StandardAcl(
                ResourceType.fromCode((byte) rule.get(0).asInt()),
                rule.get(1).asText(),
                PatternType.fromCode((byte) rule.get(2).asInt()),
                rule.get(3).asText(),
                rule.get(4).asText(),
                AclOperation.fromCode((byte) rule.get(5).asInt()),
                AclPermissionType.fromCode((byte) rule.get(6).asInt()));
    }

    private static boolean answer(StandardAuthorizer authorizer, JsonNode question) throws Exception {
        AuthorizableRequestContext client = new Client(question.get(0).asText(), question.get(1).asText());
        AclOperation operation = AclOperation.fromCode((byte) question.get(2).asInt());
        ResourceType type = ResourceType.fromCode((byte) question.get(3).asInt());
        if (question.get(4).isNull()) {
            return authorizer.authorizeByResourceType(client, operation, type) == AuthorizationResult.ALLOWED;
        }
        ResourcePattern resource = new ResourcePattern(type, question.get(4).asText(), PatternType.LITERAL);
        Action action = new Action(operation, resource, 1, false, false);
        return authorizer.authorize(client, List.of(action)).get(0) == AuthorizationResult.ALLOWED;
    }

    private static final class Client implements AuthorizableRequestContext {
        private final KafkaPrincipal principal;
        private final InetAddress address;

        Client(String name, String host) throws Exception {
            principal = new KafkaPrincipal(KafkaPrincipal.USER_TYPE, name);
            address = InetAddress.getByName(host);
        }

        @Override
        public String listenerName() {
            return "CLIENTS";
        }

        @Override
        public SecurityProtocol securityProtocol() {
            return SecurityProtocol.SASL_PLAINTEXT;
        }

        @Override
        public KafkaPrincipal principal() {
            return principal;
        }

        @Override
        public InetAddress clientAddress() {
            return address;
        }

        @Override
        public int requestType() {
            return 0;
        }

        @Override
        public int requestVersion() {
            return 0;
        }

        @Override
        public String clientId() {
            return "";
        }

        @Override
        public int correlationId() {
            return 0;
        }
    }
}
