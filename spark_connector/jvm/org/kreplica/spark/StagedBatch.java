package org.kreplica.spark;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.io.Serializable;

/** A record batch that a task has made for a partition: its bytes, or where they are in a file. Immutable. */
final class StagedBatch implements Serializable {
    private static final long serialVersionUID = 1;

    final TopicPartition at;
    private final byte[] bytes;
    private final String path;
    private final long position;
    private final int size;

    StagedBatch(TopicPartition at, byte[] bytes) {
        this(at, bytes, null, 0, bytes.length);
    }

    private StagedBatch(TopicPartition at, byte[] bytes, String path, long position, int size) {
        this.at = at;
        this.bytes = bytes;
        this.path = path;
        this.position = position;
        this.size = size;
    }

    int size() {
        return size;
    }

    /** Appends the bytes to a file, and returns the batch that is there. */
    StagedBatch in(RandomAccessFile file, String name) throws IOException {
        long end = file.length();
        file.seek(end);
        file.write(bytes);
        return new StagedBatch(at, null, name, end, size);
    }

    /** Returns the bytes, which the caller may change. */
    byte[] bytes() {
        if (bytes != null) {
            return bytes;
        }
        byte[] found = new byte[size];
        try {
            RandomAccessFile file = new RandomAccessFile(path, "r");
            try {
                file.seek(position);
                file.readFully(found);
            } finally {
                file.close();
            }
        } catch (IOException error) {
            throw ReadException.of(error);
        }
        return found;
    }
}
