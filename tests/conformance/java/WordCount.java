import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * An instance of a word count by Kafka Streams, each record exactly once.
 *
 * <p>Arguments: bootstrap servers, a directory for the state, the topics of lines and of counts, and the group
 * protocol, classic or streams. It runs until SIGTERM; "running" comes out each time when it has its tasks.
 */
public final class WordCount {
    private WordCount() {}

    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.put("application.id", "word-count");
        settings.putAll(Clients.settings(arguments[0]));
        settings.put("state.dir", arguments[1]);
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("replication.factor", "3");
        settings.put("commit.interval.ms", "100");
        settings.put("num.stream.threads", "2");
        settings.put("group.protocol", arguments[4]);
        if (arguments[4].equals("classic")) {
            // Groups of the other protocol have these as settings of the cluster.
            settings.put("consumer.session.timeout.ms", "6000");
            settings.put("consumer.heartbeat.interval.ms", "500");
        }
        settings.put("consumer.auto.offset.reset", "earliest");
        settings.put("producer.transaction.timeout.ms", "10000");
        settings.put("topic.min.insync.replicas", "2");
        // The admin client remembers leaders, and waits so long for one that has died.
        settings.put("admin.default.api.timeout.ms", "5000");
        settings.put("admin.request.timeout.ms", "2500");
        KafkaStreams streams = new KafkaStreams(topology(arguments[2], arguments[3]), settings);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        streams.setStateListener((now, before) -> {
            if (now == KafkaStreams.State.RUNNING) {
                System.out.println("running");
            }
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(30))));
        streams.start();
    }

    /** lines -> words -> repartition topic -> counts in a store with a changelog -> counts. */
    private static Topology topology(String lines, String counts) {
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(lines, Consumed.with(Serdes.String(), Serdes.String()))
                .flatMapValues(line -> Arrays.asList(line.split(" ")))
                .groupBy((key, word) -> word, Grouped.with("words", Serdes.String(), Serdes.String()))
                .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts")
                        .withKeySerde(Serdes.String())
                        .withValueSerde(Serdes.Long())
                        .withCachingDisabled())
                .toStream()
                .mapValues(count -> Long.toString(count))
                .to(counts, Produced.with(Serdes.String(), Serdes.String()));
        return builder.build();
    }
}
