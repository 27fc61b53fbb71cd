package org.kreplica.spark;

import java.io.IOException;

/**
 * The records of a range's batches, decompressed where they have to be. What was decompressed stays until `reuse`.
 * One thread.
 */
final class BatchRecords {
    final RecordCursor cursor = new RecordCursor();
    private final RangeWalk walk;
    private final boolean checksFirst;
    private final Decompressor decompressor = new Decompressor();
    private boolean isDecompressed;

    /** `checksFirst`: a batch of which one record is bad gives none of them, and is passed over. */
    BatchRecords(RangeWalk walk, boolean checksFirst) {
        this.walk = walk;
        this.checksFirst = checksFirst;
    }

    /** Stand before the first record of the next batch; false at the end. */
    boolean nextBatch() throws IOException {
        while (walk.next()) {
            if (open()) {
                return true;
            }
        }
        return false;
    }

    /** Stand before the first record of the batch that the walk is at; false where its records are passed over. */
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

    /** What the records lie in: the same for those whose positions are of the same bytes. */
    Object place() {
        return isDecompressed ? (Object) decompressor : walk.data();
    }

    int decompressedBytes() {
        return decompressor.size();
    }

    /** Nobody points to what was decompressed any more. */
    void reuse() {
        decompressor.clear();
    }
}
