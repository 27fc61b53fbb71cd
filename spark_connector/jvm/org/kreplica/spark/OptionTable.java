package org.kreplica.spark;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;

/**
 * The options of the format, from a file in this jar that spark_connector/option_table.py generates.
 *
 * An option without effect is refused before a directory is listed or a connection is made. Immutable.
 */
final class OptionTable {
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
