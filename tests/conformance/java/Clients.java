import java.io.FileReader;
import java.io.IOException;
import java.io.Reader;
import java.io.UncheckedIOException;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;

/** What each client needs to connect: the addresses, and the file that the property clients.config names, if there is one. */
final class Clients {
    private Clients() {
    }

    static Map<String, Object> settings(String bootstrap) {
        Properties security = new Properties();
        String file = System.getProperty("clients.config");
        if (file != null) {
            try (Reader reader = new FileReader(file)) {
                security.load(reader);
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
        Map<String, Object> settings = new HashMap<>();
        security.forEach((name, value) -> settings.put((String) name, value));
        settings.put("bootstrap.servers", bootstrap);
        return settings;
    }
}
