package org.kreplica.spark;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Paths;

/** What Kafka notes of its logs beside them: text files with a row "topic partition offset" for each. */
final class Checkpoints {
    private Checkpoints() {
    }

    /** The offset up to which a log's bytes are known to be on the disk. */
    static long recoveryPoint(String parent, TopicPartition at) throws IOException {
        return read(parent, "recovery-point-offset-checkpoint", at);
    }

    static long logStartOffset(String parent, TopicPartition at) throws IOException {
        return read(parent, "log-start-offset-checkpoint", at);
    }

    /** Below it all is committed. */
    static long highWatermark(String parent, TopicPartition at) throws IOException {
        return read(parent, "replication-offset-checkpoint", at);
    }

    private static long read(String parent, String name, TopicPartition at) throws IOException {
        byte[] bytes;
        try {
            bytes = Files.readAllBytes(Paths.get(parent, new String[] {name}));
        } catch (NoSuchFileException error) {
            return 0;
        }
        String[] lines = new String(bytes, StandardCharsets.UTF_8).split("\n");
        if (!lines[0].trim().equals("0")) {
            throw new ReadException(parent + "/" + name + ": version " + lines[0]);
        }
        for (int i = 2; i < lines.length; i++) {
            String[] row = lines[i].trim().split(" ");
            if (row.length == 3 && row[0].equals(at.topic) && row[1].equals(String.valueOf(at.partition))) {
                try {
                    return Long.parseLong(row[2]);
                } catch (NumberFormatException error) {
                    throw new ReadException(parent + "/" + name + ": line " + (i + 1) + ": " + lines[i], error);
                }
            }
        }
        return 0;
    }
}
