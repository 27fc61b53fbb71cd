package org.kreplica.spark;

import java.time.Instant;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.unsafe.types.UTF8String;
import org.kreplica.spark.Planner.LogRange;

/**
 * Turns filters on offset, partition, topic and timestamp into ranges, so that excluded records are not read.
 *
 * Filters on offset, partition and topic are exact, so Spark need not repeat them, and may push a limit or a count as
 * well. A filter on timestamp spares Spark most of the other records, and Spark repeats it. One thread.
 */
final class PushedFilters {
    private static final long MICROSECONDS = 1000;

    private long first;
    private long stop = Long.MAX_VALUE;
    private long fromTime = Long.MIN_VALUE;
    private long toTime = Long.MAX_VALUE;
    private Set partitions;
    private Set topics;

    /** Takes over the predicates that it can apply, and returns those that Spark must still apply. */
    Predicate[] push(Predicate[] given, List pushed) {
        List left = new ArrayList();
        for (int i = 0; i < given.length; i++) {
            boolean whole = push(given[i]);
            (whole ? pushed : left).add(given[i]);
        }
        return (Predicate[]) left.toArray(new Predicate[0]);
    }

    private boolean push(Predicate predicate) {
        Expression[] children = predicate.children();
        if (predicate.name().equals("IS_NOT_NULL")) {
            int column = column(children[0]);
            // These columns are never null.
            return column == Columns.OFFSET || column == Columns.PARTITION || column == Columns.TOPIC;
        }
        if (children.length < 2) {
            return false;
        }
        if (predicate.name().equals("IN")) {
            return column(children[0]) == Columns.OFFSET ? boundByOffsets(children) : pushIn(children);
        }
        Object value = literal(children[1]);
        return value != null && pushComparison(predicate.name(), column(children[0]), value);
    }

    private boolean pushIn(Expression[] children) {
        int column = column(children[0]);
        if (column != Columns.PARTITION && column != Columns.TOPIC) {
            return false;
        }
        Set values = new HashSet();
        for (int i = 1; i < children.length; i++) {
            Object value = literal(children[i]);
            // Nothing equals null.
            if (value != null) {
                values.add(plain(value));
            }
        }
        among(column, values);
        return true;
    }

    /** Bounds the range by the least and the largest offset; Spark chooses among the records between them. */
    private boolean boundByOffsets(Expression[] children) {
        long least = Long.MAX_VALUE;
        long most = -1;
        for (int i = 1; i < children.length; i++) {
            Object value = literal(children[i]);
            if (!(value instanceof Long)) {
                return false;
            }
            least = Math.min(least, ((Long) value).longValue());
            most = Math.max(most, ((Long) value).longValue());
        }
        pushOffset(">=", least);
        pushOffset("<=", most);
        return false;
    }

    private boolean pushComparison(String name, int column, Object value) {
        boolean equal = name.equals("=") || name.equals("<=>");
        if (column == Columns.PARTITION || column == Columns.TOPIC) {
            if (!equal) {
                return false;
            }
            Set values = new HashSet();
            values.add(plain(value));
            among(column, values);
            return true;
        }
        if (!(value instanceof Long)) {
            return false;
        }
        long number = ((Long) value).longValue();
        if (column == Columns.TIMESTAMP && (equal || name.equals(">") || name.equals(">="))) {
            fromTime = Math.max(fromTime, Math.floorDiv(number, MICROSECONDS));
        }
        if (column == Columns.TIMESTAMP && (equal || name.equals("<") || name.equals("<="))) {
            toTime = Math.min(toTime, Math.floorDiv(number, MICROSECONDS));
        }
        return column == Columns.OFFSET && pushOffset(equal ? "=" : name, number);
    }

    private boolean pushOffset(String name, long number) {
        long behind = number == Long.MAX_VALUE ? number : number + 1;
        if (name.equals("=") || name.equals(">=") || name.equals(">")) {
            first = Math.max(first, name.equals(">") ? behind : number);
        } else if (!name.equals("<") && !name.equals("<=")) {
            return false;
        }
        if (name.equals("=") || name.equals("<=") || name.equals("<")) {
            stop = Math.min(stop, name.equals("<") ? number : behind);
        }
        return true;
    }

    private void among(int column, Set values) {
        if (column == Columns.PARTITION) {
            if (partitions != null) {
                values.retainAll(partitions);
            }
            partitions = values;
        } else {
            if (topics != null) {
                values.retainAll(topics);
            }
            topics = values;
        }
    }

    private static int column(Expression expression) {
        if (!(expression instanceof NamedReference) || ((NamedReference) expression).fieldNames().length != 1) {
            return -1;
        }
        return Columns.number(((NamedReference) expression).fieldNames()[0]);
    }

    private static Object literal(Expression expression) {
        return expression instanceof Literal ? ((Literal) expression).value() : null;
    }

    private static Object plain(Object value) {
        return value instanceof UTF8String ? value.toString() : value;
    }

    boolean admits(TopicPartition at) {
        return (partitions == null || partitions.contains(Integer.valueOf(at.partition)))
            && (topics == null || topics.contains(at.topic));
    }

    /** Returns the earliest wanted time (ms since 1970); Long.MIN_VALUE for all. */
    long fromTime() {
        return fromTime;
    }

    /** Returns the range cut down by the filters; `found`: the first offset with a wanted time, null for all. */
    LogRange apply(LogRange range, Long found) {
        long begin = Math.max(range.start, first);
        long end = Math.min(range.stop, stop);
        if (found != null) {
            begin = found.longValue() < 0 ? end : Math.max(begin, found.longValue());
        }
        return new LogRange(range.at, range.directory, begin, Math.max(begin, end), fromTime, toTime);
    }

    /** Returns the range cut down by filters on offsets alone. */
    LogRange within(LogRange range) {
        long begin = Math.max(range.start, first);
        return range.between(begin, Math.max(begin, Math.min(range.stop, stop)));
    }

    /** Returns the filters as explain shows them. */
    public String toString() {
        List found = new ArrayList();
        if (topics != null) {
            found.add("topic in " + new TreeSet(topics));
        }
        if (partitions != null) {
            found.add("partition in " + new TreeSet(partitions));
        }
        if (first > 0) {
            found.add("offset >= " + first);
        }
        if (stop < Long.MAX_VALUE) {
            found.add("offset < " + stop);
        }
        if (fromTime > Long.MIN_VALUE) {
            found.add("timestamp >= " + Instant.ofEpochMilli(fromTime));
        }
        if (toTime < Long.MAX_VALUE) {
            found.add("timestamp <= " + Instant.ofEpochMilli(toTime));
        }
        return found.isEmpty() ? "" : " [filters: " + String.join(", ", found) + "]";
    }
}
