package org.kreplica.spark;

import java.io.IOException;

/**
 * The records of a range's batches, decompressed if necessary. Decompressed bytes stay valid until `reuse`. One
 * thread.
 */
final class BatchRecords {
    final RecordCursor cursor = new RecordCursor();
    private final RangeWalk walk;
    private final boolean checksFirst;
    private final Decompressor decompressor = new Decompressor();
    private boolean isDecompressed;

    /** `checksFirst`: check all records of a batch first, so that a batch with one bad record is skipped whole. */
    BatchRecords(RangeWalk walk, boolean checksFirst) {
        this.walk = walk;
        this.checksFirst = checksFirst;
    }

    /** Moves before the first record of the next batch; false at the end. */
    boolean nextBatch() throws IOException {
        while (walk.next()) {
            if (open()) {
                return true;
            }
        }
        return false;
    }

    /** Moves before the first record of the walk's current batch; false if its records are skipped. */
    boolean open() throws IOException {
        BatchHeader header = walk.header();
        isDecompressed = header.codec() != BatchHeader.NONE;
        int first = decompressor.size();
        try {
            if (isDecompressed) {
                decompressor.add(header, walk.data(), walk.index());
            }
            begin(first);
            while (checksFirst && cursor.left > 0) {
                cursor.next();
            }
            if (checksFirst) {
                begin(first);
            }
            return true;
        } catch (BadRecords error) {
            walk.skipRecords(error.getMessage());
        }
        cursor.left = 0;
        return false;
    }

    private void begin(int first) {
        BatchHeader header = walk.header();
        if (isDecompressed) {
            cursor.begin(header, decompressor.data(), first, decompressor.size());
        } else {
            int records = walk.index() + BatchHeader.SIZE;
            cursor.begin(header, walk.data(), records, walk.index() + header.size);
        }
    }

    /** Returns an identity of the buffer that holds the records; positions with the same identity share a buffer. */
    Object place() {
        return isDecompressed ? (Object) decompressor : walk.data();
    }

    int decompressedBytes() {
        return decompressor.size();
    }

    /** Frees the decompressed bytes; the caller no longer refers to them. */
    void reuse() {
        decompressor.clear();
    }
}
