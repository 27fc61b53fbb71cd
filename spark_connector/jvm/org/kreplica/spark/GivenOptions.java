package org.kreplica.spark;

import java.util.HashMap;
import java.util.Iterator;
import java.util.Locale;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The options that the user gave, by name in any case; getters raise ReadException for a wrong value. */
final class GivenOptions {
    private static final Pattern DURATION = Pattern.compile("\\s*(\\d{1,18})\\s*(ms|s|m|min|h|d)?\\s*");
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
}
