package org.kreplica.spark;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The options that the user gave, by name in any case; getters raise ReadException for a wrong value. */
final class GivenOptions {
    private static final Pattern DURATION = Pattern.compile("\\s*(\\d{1,18})\\s*(ms|s|m|min|h|d)?\\s*");
    private static final Pattern SIZE = Pattern.compile("(\\d{1,6}|\\d{1,15}(?=b?$))([kmgt]?)b?");
    private final Map given = new HashMap();

    GivenOptions(Map options) {
        for (Iterator i = options.entrySet().iterator(); i.hasNext();) {
            Map.Entry entry = (Map.Entry) i.next();
            given.put(((String) entry.getKey()).toLowerCase(Locale.ROOT), entry.getValue());
        }
    }

    boolean has(String name) {
        return given.containsKey(name.toLowerCase(Locale.ROOT));
    }

    Iterator names() {
        return new java.util.TreeSet(given.keySet()).iterator();
    }

    /** Returns the value without surrounding spaces, null if not given. */
    String text(String name) {
        String value = (String) given.get(name.toLowerCase(Locale.ROOT));
        if (value != null && value.trim().isEmpty()) {
            throw new ReadException(name + ": is empty");
        }
        return value == null ? null : value.trim();
    }

    /** Returns the directories or the cluster, for a person. */
    String where() {
        String path = has("path") ? text("path") : text("paths");
        return path == null ? "the cluster at " + text("kafka.bootstrap.servers") : path;
    }

    /** Returns a positive number, -1 if not given. */
    long count(String name) {
        String value = text(name);
        if (value == null) {
            return -1;
        }
        long found = number(value);
        if (found <= 0) {
            throw new ReadException(name + ": '" + value + "' is not a positive integer");
        }
        return found;
    }

    /** Returns a size such as 64m as bytes, -1 if not given. */
    long bytes(String name) {
        String value = text(name);
        if (value == null) {
            return -1;
        }
        Matcher found = SIZE.matcher(value.toLowerCase(Locale.ROOT));
        if (!found.matches() || Long.parseLong(found.group(1)) == 0) {
            throw new ReadException(name + ": '" + value + "' is not a size such as 134217728, 128m or 1g");
        }
        return Long.parseLong(found.group(1)) << 10 * " kmgt".indexOf((found.group(2) + " ").charAt(0));
    }

    /** Returns the number that the digits represent, -1 for anything else. */
    static long number(String text) {
        try {
            return text.matches("[0-9]+") ? Long.parseLong(text) : -1;
        } catch (NumberFormatException error) {
            return -1;
        }
    }

    boolean isTrue(String name, boolean otherwise) {
        String value = text(name);
        if (value == null) {
            return otherwise;
        }
        if (!value.equalsIgnoreCase("true") && !value.equalsIgnoreCase("false")) {
            throw new ReadException(name + ": '" + value + "' is neither true nor false");
        }
        return value.equalsIgnoreCase("true");
    }

    /** Returns one of these words, by default the first one. */
    String choice(String name, String[] among) {
        String value = text(name);
        if (value == null) {
            return among[0];
        }
        for (int i = 0; i < among.length; i++) {
            if (among[i].equalsIgnoreCase(value)) {
                return among[i];
            }
        }
        throw new ReadException(name + ": '" + value.toLowerCase(Locale.ROOT) + "' is not one of "
            + String.join(", ", among));
    }

    long durationMs(String name, long otherwise) {
        String value = text(name);
        if (value == null) {
            return otherwise;
        }
        Matcher found = DURATION.matcher(value);
        if (!found.matches()) {
            throw new ReadException(name + ": '" + value + "' is not a duration such as 30s, 5m or 1h");
        }
        return Long.parseLong(found.group(1)) * unitMs(found.group(2));
    }

    private static long unitMs(String unit) {
        if (unit == null || unit.equals("ms")) {
            return 1;
        }
        switch (unit.charAt(0)) {
            case 's':
                return 1000;
            case 'm':
                return 60_000;
            case 'h':
                return 3_600_000;
            default:
                return 86_400_000;
        }
    }

    /**
     * The options of the format, from a file in this jar that spark_connector/option_table.py generates.
     *
     * An option without effect is refused before a directory is listed or a connection is made. Immutable.
     */
    static final class OptionTable {
        static final String BATCH = "BATCH";
        static final String STREAM = "STREAM";
        static final String WRITE = "WRITE";
        private static final String FILE = "options.tsv";
        private static final String SERVERS = "kafka.bootstrap.servers";
        private static final OptionTable TABLE = new OptionTable();

        private final List rows = new ArrayList();

        private OptionTable() {
            InputStream file = OptionTable.class.getResourceAsStream(FILE);
            try {
                BufferedReader lines = new BufferedReader(new InputStreamReader(file, StandardCharsets.UTF_8));
                String line = lines.readLine();
                while (line != null) {
                    // The columns: name, uses, places, values, text, and where the option has an effect.
                    rows.add(line.split("\t", -1));
                    line = lines.readLine();
                }
                lines.close();
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        /** Checks the options. Raises ReadException for the first one, by name, that cannot be given here. */
        static void check(GivenOptions options, String use) {
            String place = isOfCluster(options) ? "CLUSTER" : "DIRECTORIES";
            for (Iterator i = options.names(); i.hasNext();) {
                String name = (String) i.next();
                String[] row = TABLE.row(name);
                if (row == null) {
                    throw new ReadException(name + ": format kreplica has no such option");
                }
                String spelled = row[0].endsWith("*") ? name : row[0];
                if (row[1].isEmpty()) {
                    throw new ReadException(spelled + ": not supported: " + row[4] + ". Remove it");
                }
                if (!has(row[1], use) || !has(row[2], place)) {
                    throw new ReadException(spelled + ": has no effect in a " + inWords(use) + " of " + inWords(place)
                        + ", only in " + row[5] + ". Remove it");
                }
                String value = options.text(spelled);
                if (!row[3].isEmpty() && !has(row[3], value.toLowerCase(Locale.ROOT))) {
                    throw new ReadException(spelled + ": '" + value + "' " + isWrong(row));
                }
            }
        }

        /** Returns whether the option may have an effect in one of these uses; true if it is unknown. */
        static boolean isFor(String name, String uses) {
            String[] row = TABLE.row(name.toLowerCase(Locale.ROOT));
            boolean found = row == null || row[1].isEmpty();
            for (int i = 0; row != null && i < uses.split(",").length; i++) {
                found = found || has(row[1], uses.split(",")[i]);
            }
            return found;
        }

        /** Returns whether a cluster is read; false if paths are given as well, which is refused elsewhere. */
        static boolean isOfCluster(GivenOptions options) {
            return options.has(SERVERS) && !options.has("path") && !options.has("paths");
        }

        /** Returns the row of the name, else of the longest pattern that matches, else null. */
        private String[] row(String name) {
            String[] found = null;
            for (Iterator i = rows.iterator(); i.hasNext();) {
                String[] row = (String[]) i.next();
                String known = row[0].toLowerCase(Locale.ROOT);
                if (known.equals(name)) {
                    return row;
                }
                boolean fits = known.endsWith("*") && name.startsWith(known.substring(0, known.length() - 1));
                if (fits && (found == null || known.length() > found[0].length())) {
                    found = row;
                }
            }
            return found;
        }

        private static boolean has(String list, String value) {
            return Arrays.asList(list.split(",")).contains(value);
        }

        private static String inWords(String name) {
            switch (name.charAt(0)) {
                case 'B':
                    return "batch read";
                case 'S':
                    return "stream read";
                case 'W':
                    return "write";
                case 'C':
                    return "a cluster";
                default:
                    return "log directories";
            }
        }

        private static String isWrong(String[] row) {
            if (row[3].indexOf(',') < 0) {
                return "is not supported, only " + row[3] + ": " + row[4];
            }
            boolean isFlag = has(row[3], "true") && has(row[3], "false");
            return isFlag ? "is neither true nor false" : "is not one of " + row[3].replace(",", ", ") + ": " + row[4];
        }
    }
}
