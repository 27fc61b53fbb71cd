package org.kreplica.spark;

import java.util.Map;

/** Options that are not parsed yet, because their meaning depends on whether a batch or a stream is read. Immutable. */
final class LazyOptions {
    private final Map given;

    LazyOptions(Map given) {
        this.given = given;
    }

    ReadOptions parse(boolean streaming) {
        return new ReadOptions(given, streaming);
    }

    String where() {
        GivenOptions options = new GivenOptions(given);
        String path = options.text("path");
        return path == null ? options.text("paths") : path;
    }
}
