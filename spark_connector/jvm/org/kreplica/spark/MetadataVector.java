package org.kreplica.spark;

import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.unsafe.types.UTF8String;

/** The column _metadata: what the log says of the batch in which a record is stored. */
final class MetadataVector extends FixedVector {
    static final String NAME = "_metadata";
    private static final String[] CODECS = {"none", "gzip", "snappy", "lz4", "zstd"};
    private static final String[] NAMES = {"segment", "batch", "batch_bytes", "compression", "leader_epoch",
        "transactional", "producer_id", "producer_epoch", "sequence"};
    private static final DataType[] TYPES = {DataTypes.LongType, DataTypes.LongType, DataTypes.IntegerType,
        DataTypes.StringType, DataTypes.IntegerType, DataTypes.BooleanType, DataTypes.LongType, DataTypes.IntegerType,
        DataTypes.IntegerType};
    private static final String[] COMMENTS = {
        "first offset of the segment's file; null from a cluster", "first offset of the record batch",
        "size of the record batch", "codec of the record batch", "leader epoch in which the record batch was appended",
        "whether a transaction wrote it", "id of an idempotent producer, else null", "the producer's epoch",
        "the record's number among those of its producer",
    };

    private final int[] facts;
    private final FactVector[] children;

    MetadataVector(StructType type, int capacity) {
        super(type);
        facts = new int[type.fields().length];
        children = new FactVector[facts.length];
        for (int i = 0; i < facts.length; i++) {
            facts[i] = java.util.Arrays.asList(NAMES).indexOf(type.fields()[i].name());
            children[i] = new FactVector(type.fields()[i].dataType(), capacity);
        }
    }

    static StructType type() {
        StructField[] fields = new StructField[NAMES.length];
        for (int i = 0; i < fields.length; i++) {
            fields[i] = DataTypes.createStructField(NAMES[i], TYPES[i], true).withComment(COMMENTS[i]);
        }
        return DataTypes.createStructType(fields);
    }

    /** Sets the row of a record of the batch. */
    void set(int row, RangeBatches walk, long offset) {
        BatchHeader batch = walk.header();
        boolean hasProducer = batch.producerId >= 0;
        for (int i = 0; i < facts.length; i++) {
            switch (facts[i]) {
                case 0:
                    children[i].set(row, walk.segment(), walk.segment() >= 0);
                    break;
                case 1:
                    children[i].set(row, batch.baseOffset, true);
                    break;
                case 2:
                    children[i].set(row, batch.size, true);
                    break;
                case 3:
                    children[i].set(row, batch.codec(), true);
                    break;
                case 4:
                    children[i].set(row, batch.leaderEpoch, batch.leaderEpoch >= 0);
                    break;
                case 5:
                    children[i].set(row, batch.isTransactional() ? 1 : 0, true);
                    break;
                case 6:
                    children[i].set(row, batch.producerId, hasProducer);
                    break;
                case 7:
                    children[i].set(row, batch.producerEpoch, hasProducer);
                    break;
                default:
                    long sequence = batch.baseSequence + offset - batch.baseOffset;
                    children[i].set(row, sequence & Integer.MAX_VALUE, hasProducer && batch.baseSequence >= 0);
            }
        }
    }

    public ColumnVector getChild(int ordinal) {
        return children[ordinal];
    }

    /** One fact of each row, as a number; that of a codec stands for its name. */
    private static final class FactVector extends FixedVector {
        private final long[] values;
        private final boolean[] isKnown;
        private int unknown;

        FactVector(DataType type, int capacity) {
            super(type);
            values = new long[capacity];
            isKnown = new boolean[capacity];
        }

        void set(int row, long value, boolean known) {
            unknown = (row == 0 ? 0 : unknown) + (known ? 0 : 1);
            values[row] = value;
            isKnown[row] = known;
        }

        public boolean hasNull() {
            return unknown > 0;
        }

        public int numNulls() {
            return unknown;
        }

        public boolean isNullAt(int row) {
            return !isKnown[row];
        }

        public boolean getBoolean(int row) {
            return values[row] == 1;
        }

        public int getInt(int row) {
            return (int) values[row];
        }

        public long getLong(int row) {
            return values[row];
        }

        public UTF8String getUTF8String(int row) {
            return UTF8String.fromString(CODECS[(int) values[row]]);
        }
    }
}
