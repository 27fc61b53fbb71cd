import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Times Kafka's own producer against a cluster: bootstrap servers, measure, amount, bytes of a value.
 *
 * <p>"latency": `amount` records, one in flight; the answer has p50 and p99 in ns. "throughput": `amount` bytes of
 * values, with the producer's default number of requests in flight; the answer is ns for each batch of 16 records. Both
 * use acks=all, create a topic of one partition with all brokers as replicas, and warm up first.
 */
public final class KafkaReplication {
    private static final int RECORDS_OF_A_BATCH = 16;
    private static final int BATCH_SIZE = 16_384;
    private static final int WINDOW = 4_096;

    private final KafkaProducer<byte[], byte[]> producer;
    private final String topic;
    private final byte[] value;

    private KafkaReplication(String bootstrap, String topic, int valueBytes, int lingerMs) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("acks", "all");
        settings.put("linger.ms", lingerMs);
        settings.put("batch.size", BATCH_SIZE);
        settings.put("key.serializer", ByteArraySerializer.class.getName());
        settings.put("value.serializer", ByteArraySerializer.class.getName());
        this.topic = topic;
        this.value = new byte[valueBytes];
        Arrays.fill(value, (byte) 'v');
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            NewTopic wanted = new NewTopic(topic, Optional.of(1), Optional.of((short) 3));
            admin.createTopics(List.of(wanted)).all().get();
        }
        this.producer = new KafkaProducer<>(settings);
    }

    public static void main(String[] arguments) throws Exception {
        long amount = Long.parseLong(arguments[2]);
        int valueBytes = Integer.parseInt(arguments[3]);
        boolean latency = arguments[1].equals("latency");
        String topic = arguments[1] + "-" + System.nanoTime();
        KafkaReplication run = new KafkaReplication(arguments[0], topic, valueBytes, latency ? 0 : 5);
        System.out.println(latency ? run.latency((int) amount) : run.throughput(amount));
        run.producer.close();
    }

    private Future<RecordMetadata> send() {
        return producer.send(new ProducerRecord<>(topic, value));
    }

    private String latency(int records) throws ExecutionException, InterruptedException {
        long[] took = new long[records];
        for (int warm = 0; warm < 2; warm++) {
            for (int i = 0; i < records; i++) {
                long start = System.nanoTime();
                send().get();
                took[i] = System.nanoTime() - start;
            }
        }
        Arrays.sort(took);
        return "{\"p50\": " + took[records / 2] + ", \"p99\": " + took[records * 99 / 100] + "}";
    }

    private String throughput(long totalBytes) throws ExecutionException, InterruptedException {
        long records = totalBytes / value.length;
        sendAll(Math.min(records, 100_000));
        long start = System.nanoTime();
        sendAll(records);
        long took = System.nanoTime() - start;
        return "{\"batch\": " + took * (double) RECORDS_OF_A_BATCH / records + "}";
    }

    private void sendAll(long records) throws ExecutionException, InterruptedException {
        List<Future<RecordMetadata>> window = new ArrayList<>();
        for (long i = 0; i < records; i++) {
            window.add(send());
            if (window.size() == WINDOW) {
                // Half of them may still be in flight, so the producer is never idle.
                for (Future<RecordMetadata> sent : window.subList(0, WINDOW / 2)) {
                    sent.get();
                }
                window = new ArrayList<>(window.subList(WINDOW / 2, WINDOW));
            }
        }
        for (Future<RecordMetadata> sent : window) {
            sent.get();
        }
    }
}
