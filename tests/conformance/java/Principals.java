import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import javax.security.auth.x500.X500Principal;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

/**
 * Principals of certificates, a case a line.
 *
 * <p>Each line of standard input is a JSON object: a name in DER, as hex, or rules and a name as text. The line that
 * comes out is the text of the name, or what Kafka's rules make of it; null if they do not take it.
 */
public final class Principals {
    private static final ObjectMapper JSON = new ObjectMapper();

    private Principals() {}

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode given = JSON.readTree(line);
            out.println(JSON.writeValueAsString(given.has("der") ? text(given) : mapped(given)));
            out.flush();
        }
    }

    private static String text(JsonNode given) {
        return new X500Principal(HexFormat.of().parseHex(given.get("der").asText())).getName();
    }

    private static String mapped(JsonNode given) {
        try {
            return SslPrincipalMapper.fromRules(given.get("rules").asText()).getName(given.get("name").asText());
        } catch (Exception error) {
            return null;
        }
    }
}
