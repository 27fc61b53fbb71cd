package org.kreplica.spark;

import java.util.HashMap;
import java.util.Iterator;
import java.util.Locale;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** What a user gave, by name in any case; each getter says what is wrong with what it finds. */
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

    /** The value without spaces around it; null where there is none. */
    String text(String name) {
        String value = (String) given.get(name.toLowerCase(Locale.ROOT));
        if (value != null && value.trim().isEmpty()) {
            throw new ReadException(name + ": is empty");
        }
        return value == null ? null : value.trim();
    }

    /** A positive number; -1 where there is none. */
    long count(String name) {
        String value = text(name);
        if (value == null) {
            return -1;
        }
        long found = number(value);
        if (found <= 0) {
            throw new ReadException(name + ": '" + value + "' is no positive whole number");
        }
        return found;
    }

    /** What the digits say; -1 for anything else. */
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

    /** One of these words; the first one where there is none. */
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
        throw new ReadException(name + ": '" + value.toLowerCase(Locale.ROOT) + "' is none of "
            + String.join(", ", among));
    }

    long durationMs(String name, long otherwise) {
        String value = text(name);
        if (value == null) {
            return otherwise;
        }
        Matcher found = DURATION.matcher(value);
        if (!found.matches()) {
            throw new ReadException(name + ": '" + value + "' is no time such as 30s, 5m or 1h");
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
