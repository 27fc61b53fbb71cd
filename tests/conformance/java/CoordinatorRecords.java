import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.MessageUtil;

/**
 * The bytes of coordinators' records, by Kafka's own classes. A line of the input is a JSON array: "group" or "share",
 * the record's type, the version of its value, its key, its value. A line of the output has the bytes of both in hex.
 */
public final class CoordinatorRecords {
    private CoordinatorRecords() {}

    public static void main(String[] arguments) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            JsonNode record = mapper.readTree(line);
            boolean isGroup = record.get(0).asText().equals("group");
            short type = (short) record.get(1).asInt();
            short version = (short) record.get(2).asInt();
            ApiMessage key;
            ApiMessage value;
            if (isGroup) {
                key = org.apache.kafka.coordinator.group.generated.CoordinatorRecordJsonConverters
                    .readRecordKeyFromJson(record.get(3), type);
                value = org.apache.kafka.coordinator.group.generated.CoordinatorRecordJsonConverters
                    .readRecordValueFromJson(record.get(4), type, version);
            } else {
                key = org.apache.kafka.coordinator.share.generated.CoordinatorRecordJsonConverters
                    .readRecordKeyFromJson(record.get(3), type);
                value = org.apache.kafka.coordinator.share.generated.CoordinatorRecordJsonConverters
                    .readRecordValueFromJson(record.get(4), type, version);
            }
            byte[] keyBytes = MessageUtil.toCoordinatorTypePrefixedBytes(key);
            byte[] valueBytes = MessageUtil.toVersionPrefixedBytes(version, value);
            System.out.println(HexFormat.of().formatHex(keyBytes) + " " + HexFormat.of().formatHex(valueBytes));
        }
    }
}
