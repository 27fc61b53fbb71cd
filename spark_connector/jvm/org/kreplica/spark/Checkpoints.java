package org.kreplica.spark;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Paths;

/** Kafka's checkpoint files beside the logs: text files with a row "topic partition offset" for each log. */
final class Checkpoints {
    private Checkpoints() {
    }

    /** Returns the offset up to which the log's bytes are known to be on disk. */
    static long recoveryPoint(String parent, TopicPartition at) throws IOException {
        return read(parent, "recovery-point-offset-checkpoint", at);
    }

    /** Returns the offset at which the log begins, -1 if it is not recorded. */
    static long logStartOffset(String parent, TopicPartition at) throws IOException {
        return find(parent, "log-start-offset-checkpoint", at);
    }

    /** Returns whether a cleaner has compacted the log. */
    static boolean wasCleaned(String parent, TopicPartition at) throws IOException {
        return find(parent, "cleaner-offset-checkpoint", at) >= 0;
    }

    /** Returns the offset at which the first leader epoch of the log in `directory` begins, -1 if not recorded. */
    static long firstEpochStart(String directory) throws IOException {
        String[] lines = lines(directory, "leader-epoch-checkpoint");
        String[] row = lines.length > 2 ? lines[2].trim().split(" ") : lines;
        return row.length == 2 ? number(row[1], directory + "/leader-epoch-checkpoint: " + lines[2]) : -1;
    }

    /** Returns the high watermark: every record below it is committed. */
    static long highWatermark(String parent, TopicPartition at) throws IOException {
        return read(parent, "replication-offset-checkpoint", at);
    }

    private static long read(String parent, String name, TopicPartition at) throws IOException {
        return Math.max(0, find(parent, name, at));
    }

    private static long find(String parent, String name, TopicPartition at) throws IOException {
        String[] lines = lines(parent, name);
        for (int i = 2; i < lines.length; i++) {
            String[] row = lines[i].trim().split(" ");
            if (row.length == 3 && row[0].equals(at.topic) && row[1].equals(String.valueOf(at.partition))) {
                return number(row[2], parent + "/" + name + ": line " + (i + 1) + ": " + lines[i]);
            }
        }
        return -1;
    }

    private static long number(String text, String where) {
        try {
            return Long.parseLong(text);
        } catch (NumberFormatException error) {
            throw new ReadException(where, error);
        }
    }

    /** Returns the lines of the file (version, row count, rows); no lines if there is no file. */
    private static String[] lines(String directory, String name) throws IOException {
        byte[] bytes;
        try {
            bytes = Files.readAllBytes(Paths.get(directory, new String[] {name}));
        } catch (NoSuchFileException error) {
            return new String[0];
        }
        String[] lines = new String(bytes, StandardCharsets.UTF_8).split("\n");
        if (!lines[0].trim().equals("0")) {
            throw new ReadException(directory + "/" + name + ": unknown version " + lines[0]);
        }
        return lines;
    }
}
