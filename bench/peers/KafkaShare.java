import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Times Kafka's own share consumer against a cluster: bootstrap servers, topic, measure, number of records.
 *
 * <p>"rate": take and accept the topic's records, and answer records per second from the first one on. "latency":
 * send a record with acks=all, take it, accept it and wait until that is stored, one after the other; the answer is
 * the median in microseconds.
 */
public final class KafkaShare {
    private static final Duration PATIENCE = Duration.ofMillis(500);

    private KafkaShare() {
    }

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        int records = Integer.parseInt(arguments[3]);
        String group = topic + "-" + arguments[2];
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", arguments[0]))) {
            ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
            ConfigEntry start = new ConfigEntry("share.auto.offset.reset", "earliest");
            AlterConfigOp set = new AlterConfigOp(start, AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(set))).all().get();
        }
        boolean latency = arguments[2].equals("latency");
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", group);
        settings.put("share.acknowledgement.mode", latency ? "explicit" : "implicit");
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        try (KafkaShareConsumer<byte[], byte[]> consumer = new KafkaShareConsumer<>(settings)) {
            consumer.subscribe(List.of(topic));
            System.out.println(latency ? latency(arguments[0], topic, consumer, records) : rate(consumer, records));
        }
    }

    private static double rate(KafkaShareConsumer<byte[], byte[]> consumer, int records) {
        int taken = 0;
        int first = 0;
        long began = 0;
        while (taken < records) {
            taken += consumer.poll(PATIENCE).count();
            if (began == 0 && taken > 0) {
                began = System.nanoTime();
                first = taken;
            }
        }
        consumer.commitSync();
        return (taken - first) * 1e9 / (System.nanoTime() - began);
    }

    private static double latency(
            String bootstrap, String topic, KafkaShareConsumer<byte[], byte[]> consumer, int records)
            throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("acks", "all");
        settings.put("linger.ms", 0);
        settings.put("key.serializer", ByteArraySerializer.class.getName());
        settings.put("value.serializer", ByteArraySerializer.class.getName());
        byte[] value = "a record".getBytes(StandardCharsets.US_ASCII);
        long[] taken = new long[records];
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
            for (int number = 0; number < 2 * records; number++) {
                long began = System.nanoTime();
                producer.send(new ProducerRecord<>(topic, 0, null, value)).get();
                boolean isAccepted = false;
                while (!isAccepted) {
                    for (ConsumerRecord<byte[], byte[]> record : consumer.poll(PATIENCE)) {
                        consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                        isAccepted = true;
                    }
                }
                consumer.commitSync();
                if (number >= records) { // the first half warms up
                    taken[number - records] = System.nanoTime() - began;
                }
            }
        }
        Arrays.sort(taken);
        return taken[records / 2] / 1e3;
    }
}
