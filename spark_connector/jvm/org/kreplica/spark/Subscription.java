package org.kreplica.spark;

import java.util.Arrays;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.Set;
import java.util.SortedMap;
import java.util.SortedSet;
import java.util.TreeSet;
import java.util.regex.Pattern;
import java.util.regex.PatternSyntaxException;

/** The partitions to read: topics by name, topics by a pattern, listed partitions, or all. Immutable. */
final class Subscription {
    private static final String[] OPTIONS = {"subscribe", "subscribePattern", "assign"};
    private static final int LISTED = 20;

    private final Set topics;
    private final Pattern pattern;
    private final SortedMap assigned;

    private Subscription(Set topics, Pattern pattern, SortedMap assigned) {
        this.topics = topics;
        this.pattern = pattern;
        this.assigned = assigned;
    }

    static Subscription of(GivenOptions options) {
        String given = null;
        for (int i = 0; i < OPTIONS.length; i++) {
            if (options.has(OPTIONS[i])) {
                if (given != null) {
                    throw new ReadException("name exactly one of the options subscribe, subscribePattern and assign, "
                        + "not " + given + " and " + OPTIONS[i]);
                }
                given = OPTIONS[i];
            }
        }
        if (given == null) {
            return new Subscription(null, null, null);
        }
        String text = options.text(given);
        if (given.equals("assign")) {
            return new Subscription(null, null, Json.assignment(given, text));
        }
        return given.equals("subscribe") ? byName(text) : byPattern(text);
    }

    private static Subscription byName(String text) {
        Set topics = new LinkedHashSet();
        String[] names = text.split(",");
        for (int i = 0; i < names.length; i++) {
            if (!names[i].trim().isEmpty()) {
                topics.add(names[i].trim());
            }
        }
        if (topics.isEmpty()) {
            throw new ReadException("subscribe: names no topic");
        }
        return new Subscription(topics, null, null);
    }

    private static Subscription byPattern(String text) {
        try {
            return new Subscription(null, Pattern.compile(text), null);
        } catch (PatternSyntaxException error) {
            throw new ReadException("subscribePattern: '" + text + "' is not a regular expression: "
                + error.getDescription());
        }
    }

    /** Returns the subscribed ones of `known`, sorted. Raises ReadException if a named one does not exist. */
    SortedSet of(PartitionDirectories known, boolean allThere) {
        SortedSet found = new TreeSet();
        for (Iterator i = known.partitions().iterator(); i.hasNext();) {
            TopicPartition at = (TopicPartition) i.next();
            if (isWanted(at)) {
                found.add(at);
            }
        }
        if (allThere) {
            requireNamed(known);
        }
        return found;
    }

    private boolean isWanted(TopicPartition at) {
        if (assigned != null) {
            return assigned.containsKey(at);
        }
        if (topics != null) {
            return topics.contains(at.topic);
        }
        // Kafka's internal topics are read only if they are named.
        return !at.topic.startsWith("__") && (pattern == null || pattern.matcher(at.topic).find());
    }

    private void requireNamed(PartitionDirectories known) {
        TreeSet there = new TreeSet();
        for (Iterator i = known.partitions().iterator(); i.hasNext();) {
            there.add(((TopicPartition) i.next()).topic);
        }
        for (Iterator i = topics == null ? new TreeSet().iterator() : topics.iterator(); i.hasNext();) {
            requireTopic("subscribe", (String) i.next(), there, known);
        }
        for (Iterator i = assigned == null ? new TreeSet().iterator() : assigned.keySet().iterator(); i.hasNext();) {
            TopicPartition at = (TopicPartition) i.next();
            requireTopic("assign", at.topic, there, known);
            if (!known.partitions().contains(at)) {
                throw new ReadException("assign: partition " + at + " does not exist in " + known);
            }
        }
    }

    private static void requireTopic(String option, String topic, TreeSet there, PartitionDirectories known) {
        if (!there.contains(topic)) {
            Object[] names = there.toArray();
            String listed = names.length == 0 ? "no topics"
                : Arrays.asList(Arrays.copyOf(names, Math.min(names.length, LISTED))).toString();
            throw new ReadException(option + ": topic '" + topic + "' does not exist in " + known + "; there are "
                + listed.replace("[", "").replace("]", ""));
        }
    }
}
