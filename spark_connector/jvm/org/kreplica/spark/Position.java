package org.kreplica.spark;

import java.util.Iterator;
import java.util.Map;
import java.util.SortedMap;

/**
 * A requested start or end: a timestamp for all partitions, else timestamps by partition, else offsets by partition,
 * else EARLIEST or LATEST. Immutable.
 */
final class Position {
    static final long EARLIEST = -2;
    static final long LATEST = -1;

    /** The option that sets it. */
    final String option;
    final long otherwise;
    final long timestamp;
    final SortedMap timestamps;
    final SortedMap offsets;

    private Position(String option, long otherwise, long timestamp, SortedMap timestamps, SortedMap offsets) {
        this.option = option;
        this.otherwise = otherwise;
        this.timestamp = timestamp;
        this.timestamps = timestamps;
        this.offsets = offsets;
    }

    /** Parses a position; `which` is starting or ending. The first option that is set counts. */
    static Position of(GivenOptions options, String which, long otherwise) {
        String option = which + "Timestamp";
        String text = options.text(option);
        if (text != null) {
            long timestamp = GivenOptions.number(text);
            if (timestamp < 0) {
                throw new ReadException(option + ": '" + text + "' is not a time in ms since 1970");
            }
            return new Position(option, otherwise, timestamp, null, null);
        }
        option = which + "OffsetsByTimestamp";
        text = options.text(option);
        if (text != null) {
            return new Position(option, otherwise, -1, Json.numbers(option, text, "timestamp", 0), null);
        }
        option = which + "Offsets";
        text = options.text(option);
        if (text == null) {
            return new Position(option, otherwise, -1, null, null);
        }
        if (text.equalsIgnoreCase("earliest") || text.equalsIgnoreCase("latest")) {
            return new Position(option, text.equalsIgnoreCase("earliest") ? EARLIEST : LATEST, -1, null, null);
        }
        return new Position(option, otherwise, -1, null, Json.numbers(option, text, "offset", EARLIEST));
    }

    /** Raises ReadException if this position makes a batch empty. */
    void checkBatch(boolean isStart) {
        long wrong = isStart ? LATEST : EARLIEST;
        if (otherwise == wrong) {
            throw new ReadException(option + (isStart ? ": a batch that begins at the latest offset would be empty"
                : ": a batch that ends at the earliest offset would be empty"));
        }
        if (offsets == null) {
            return;
        }
        for (Iterator i = offsets.entrySet().iterator(); i.hasNext();) {
            Map.Entry entry = (Map.Entry) i.next();
            if (((Long) entry.getValue()).longValue() == wrong) {
                throw new ReadException(option + ": " + entry.getKey() + (isStart
                    ? " cannot begin at latest (-1) in a batch" : " cannot end at earliest (-2) in a batch"));
            }
        }
    }
}
