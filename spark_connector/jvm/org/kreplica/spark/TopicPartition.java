package org.kreplica.spark;

import java.io.Serializable;

/** A topic and a partition number, ordered by both. Immutable. */
final class TopicPartition implements Serializable, Comparable {
    private static final long serialVersionUID = 1;

    final String topic;
    final int partition;

    TopicPartition(String topic, int partition) {
        this.topic = topic;
        this.partition = partition;
    }

    /** Returns the partition in a directory of this name, null if the name is not one. */
    static TopicPartition ofDirectory(String name) {
        int dash = name.lastIndexOf('-');
        if (dash <= 0 || dash == name.length() - 1) {
            return null;
        }
        for (int i = 0; i < name.length(); i++) {
            char c = name.charAt(i);
            boolean digit = c >= '0' && c <= '9';
            boolean letter = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '.' || c == '_' || c == '-';
            if (i > dash ? !digit : !(digit || letter)) {
                return null;
            }
        }
        try {
            return new TopicPartition(name.substring(0, dash), Integer.parseInt(name.substring(dash + 1)));
        } catch (NumberFormatException error) {
            return null;
        }
    }

    public int compareTo(Object other) {
        TopicPartition that = (TopicPartition) other;
        int order = topic.compareTo(that.topic);
        return order != 0 ? order : Integer.compare(partition, that.partition);
    }

    public boolean equals(Object other) {
        return other instanceof TopicPartition && compareTo(other) == 0;
    }

    public int hashCode() {
        return topic.hashCode() * 31 + partition;
    }

    public String toString() {
        return topic + "-" + partition;
    }
}
