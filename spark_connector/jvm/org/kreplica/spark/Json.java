package org.kreplica.spark;

import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The JSON of options and checkpoints: numbers by topic and partition, in the form of Spark's Kafka source. */
final class Json {
    // A repeated key is refused, because its value is ambiguous.
    private static final ObjectMapper MAPPER =
        new ObjectMapper().configure(JsonParser.Feature.STRICT_DUPLICATE_DETECTION, true);
    private static final Pattern TWICE = Pattern.compile("Duplicate field ('.*')", Pattern.DOTALL);

    private Json() {
    }

    /** Parses {"topic": {"0": 23}} into a Long for each TopicPartition. `option`: the option named in errors. */
    static SortedMap numbers(String option, String text, String what, long least) {
        SortedMap found = new TreeMap();
        JsonNode topics = object(option, text, "{\"topic\": {\"0\": 23, \"1\": -2}}");
        for (Iterator i = topics.properties().iterator(); i.hasNext();) {
            Map.Entry topic = (Map.Entry) i.next();
            JsonNode partitions = (JsonNode) topic.getValue();
            if (!partitions.isObject() || partitions.isEmpty()) {
                throw new ReadException(option + ": '" + topic.getKey() + "' has no " + what + "s by partition");
            }
            for (Iterator j = partitions.properties().iterator(); j.hasNext();) {
                Map.Entry each = (Map.Entry) j.next();
                JsonNode number = (JsonNode) each.getValue();
                boolean fits = number.isIntegralNumber() && number.canConvertToLong() && number.asLong() >= least;
                if (!fits) {
                    throw new ReadException(option + ": " + topic.getKey() + "-" + each.getKey() + ": " + number
                        + " is not a valid " + what);
                }
                TopicPartition at = at(option, (String) topic.getKey(), (String) each.getKey());
                if (found.put(at, Long.valueOf(number.asLong())) != null) {
                    throw new ReadException(option + ": " + at + " is named twice");
                }
            }
        }
        return found;
    }

    /** Parses {"topic": [0, 1]} into TopicPartitions, sorted. */
    static SortedMap assignment(String option, String text) {
        SortedMap found = new TreeMap();
        JsonNode topics = object(option, text, "{\"topic\": [0, 1]}");
        for (Iterator i = topics.properties().iterator(); i.hasNext();) {
            Map.Entry topic = (Map.Entry) i.next();
            JsonNode partitions = (JsonNode) topic.getValue();
            if (!partitions.isArray() || partitions.isEmpty()) {
                throw new ReadException(option + ": '" + topic.getKey() + "' has no list of partitions");
            }
            for (Iterator j = partitions.elements(); j.hasNext();) {
                found.put(at(option, (String) topic.getKey(), j.next().toString()), Boolean.TRUE);
            }
        }
        return found;
    }

    /** Returns the text of a member, null if the object has no such text. */
    static String member(String option, String text, String name) {
        JsonNode found = tree(option, text, "is not JSON");
        JsonNode member = found == null ? null : found.get(name);
        return member == null || !member.isTextual() ? null : member.asText();
    }

    /** Returns a String[] of these members for each object in an array, which may be missing. */
    static List rows(String option, String text, String array, String[] members) {
        JsonNode found = (JsonNode) tree(option, text, "is not JSON").path(array);
        List rows = new ArrayList();
        for (Iterator i = found.elements(); i.hasNext();) {
            JsonNode each = (JsonNode) i.next();
            String[] row = new String[members.length];
            for (int j = 0; j < row.length; j++) {
                row[j] = ((JsonNode) each.path(members[j])).asText();
            }
            rows.add(row);
        }
        return rows;
    }

    static List texts(String option, String text) {
        JsonNode found = tree(option, text, "not JSON");
        List texts = new ArrayList();
        boolean fits = found != null && found.isArray() && !found.isEmpty();
        for (Iterator i = fits ? found.elements() : texts.iterator(); i.hasNext();) {
            JsonNode each = (JsonNode) i.next();
            fits = fits && each.isTextual();
            texts.add(each.asText());
        }
        if (!fits) {
            throw new ReadException(option + ": " + text + " is not a JSON array of paths");
        }
        return texts;
    }

    /** Returns the JSON of Longs by TopicPartition, sorted by topic and partition. */
    static String text(SortedMap offsets) {
        TreeMap topics = new TreeMap();
        for (Iterator i = offsets.entrySet().iterator(); i.hasNext();) {
            Map.Entry entry = (Map.Entry) i.next();
            TopicPartition at = (TopicPartition) entry.getKey();
            if (!topics.containsKey(at.topic)) {
                topics.put(at.topic, new java.util.LinkedHashMap());
            }
            ((Map) topics.get(at.topic)).put(String.valueOf(at.partition), entry.getValue());
        }
        try {
            return MAPPER.writeValueAsString(topics);
        } catch (JsonProcessingException error) {
            throw new IllegalStateException(error);
        }
    }

    private static TopicPartition at(String option, String topic, String partition) {
        long number = GivenOptions.number(partition);
        if (number < 0 || number > Integer.MAX_VALUE) {
            String given = partition.replace("\"", "'");
            String shown = given.startsWith("'") ? given : "'" + given + "'";
            throw new ReadException(option + ": '" + topic + "': " + shown + " is not a partition number");
        }
        return new TopicPartition(topic, (int) number);
    }

    private static JsonNode object(String option, String text, String example) {
        JsonNode found = tree(option, text, "is not JSON such as " + example);
        if (found == null || !found.isObject() || found.isEmpty()) {
            throw new ReadException(option + ": '" + start(text) + "' does not look like " + example);
        }
        return found;
    }

    private static JsonNode tree(String option, String text, String wrong) {
        try {
            return MAPPER.readTree(text);
        } catch (JsonProcessingException error) {
            Matcher twice = TWICE.matcher(error.getOriginalMessage());
            if (twice.matches()) {
                throw new ReadException(option + ": '" + start(text) + "' names " + twice.group(1) + " twice");
            }
            throw new ReadException(option + ": '" + start(text) + "' " + wrong + ": " + error.getOriginalMessage());
        }
    }

    private static String start(String text) {
        return text.length() > 80 ? text.substring(0, 80) : text;
    }
}
