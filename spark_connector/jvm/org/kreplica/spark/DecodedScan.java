package org.kreplica.spark;

import java.io.IOException;
import java.io.Serializable;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.kreplica.spark.PythonHalf.PlainErrors;
import org.kreplica.spark.ValueFormat.ValueDecoder;

/**
 * A scan of either reader with the values decoded by a ValueFormat, in the tasks.
 *
 * It passes every call on to the scan, its batch or its stream, and changes what they say of columns. One thread.
 */
final class DecodedScan implements InvocationHandler {
    private final Object inner;
    private final StructType raw;
    private final StructType decoded;
    private final ValueFormat format;

    private DecodedScan(Object inner, StructType raw, StructType decoded, ValueFormat format) {
        this.inner = inner;
        this.raw = raw;
        this.decoded = decoded;
        this.format = format;
    }

    private Object with(Object other) {
        return PlainErrors.proxy(other, new DecodedScan(other, raw, decoded, format));
    }

    public Object invoke(Object proxy, Method method, Object[] arguments) throws Throwable {
        String name = method.getName();
        if (name.equals("readSchema")) {
            return decoded;
        }
        if (name.equals("columnarSupportMode")) {
            return Scan.ColumnarSupportMode.UNSUPPORTED;
        }
        Object found;
        try {
            found = method.invoke(inner, arguments);
        } catch (InvocationTargetException error) {
            throw error.getCause();
        }
        if (name.equals("createReaderFactory")) {
            return new DecodingFactory((PartitionReaderFactory) found, raw, decoded, format);
        }
        if (name.equals("description")) {
            return found + " [value: " + format.name + "]";
        }
        boolean isPart = method.getReturnType() == Batch.class || method.getReturnType() == MicroBatchStream.class;
        return isPart ? with(found) : found;
    }

    /** Builds the scan; a count or a limit is left to Spark. One thread. */
    static final class DecodedBuilder implements SupportsPushDownRequiredColumns, SupportsPushDownV2Filters {
        private final ScanBuilder inner;
        private final ValueFormat format;
        private StructType decoded;

        /** `decoded`: the columns that a query sees. */
        DecodedBuilder(ScanBuilder inner, StructType decoded, ValueFormat format) {
            this.inner = inner;
            this.decoded = decoded;
            this.format = format;
        }

        public void pruneColumns(StructType required) {
            decoded = required;
            if (inner instanceof SupportsPushDownRequiredColumns) {
                ((SupportsPushDownRequiredColumns) inner).pruneColumns(needed(required));
            }
        }

        private StructType needed(StructType required) {
            StructField[] fields = required.fields();
            List found = new ArrayList();
            boolean hasValue = false;
            for (int i = 0; i < fields.length; i++) {
                boolean isValue = Columns.number(fields[i].name()) == Columns.VALUE
                    || fields[i].name().equalsIgnoreCase(ValueFormat.UNDECODED);
                if (!isValue) {
                    found.add(fields[i]);
                } else if (!hasValue) {
                    hasValue = true;
                    found.add(DataTypes.createStructField("value", DataTypes.BinaryType, true));
                }
            }
            return DataTypes.createStructType(found);
        }

        public Predicate[] pushPredicates(Predicate[] predicates) {
            if (!(inner instanceof SupportsPushDownV2Filters)) {
                return predicates;
            }
            List ours = new ArrayList();
            List left = new ArrayList();
            for (int i = 0; i < predicates.length; i++) {
                (isOfValue(predicates[i]) ? left : ours).add(predicates[i]);
            }
            Predicate[] pushed = (Predicate[]) ours.toArray(new Predicate[0]);
            Predicate[] others = ((SupportsPushDownV2Filters) inner).pushPredicates(pushed);
            for (int i = 0; i < others.length; i++) {
                left.add(others[i]);
            }
            return (Predicate[]) left.toArray(new Predicate[0]);
        }

        private static boolean isOfValue(Predicate predicate) {
            for (int i = 0; i < predicate.references().length; i++) {
                String name = predicate.references()[i].fieldNames()[0];
                if (Columns.number(name) == Columns.VALUE || name.equalsIgnoreCase(ValueFormat.UNDECODED)) {
                    return true;
                }
            }
            return false;
        }

        public Predicate[] pushedPredicates() {
            return inner instanceof SupportsPushDownV2Filters
                ? ((SupportsPushDownV2Filters) inner).pushedPredicates() : new Predicate[0];
        }

        public Scan build() {
            Scan scan = inner.build();
            return (Scan) new DecodedScan(scan, scan.readSchema(), decoded, format).with(scan);
        }
    }

    /** Makes the readers of tasks. Immutable. */
    private static final class DecodingFactory implements PartitionReaderFactory, Serializable {
        private static final long serialVersionUID = 1;

        private final PartitionReaderFactory inner;
        private final StructType raw;
        private final StructType decoded;
        private final ValueFormat format;

        DecodingFactory(PartitionReaderFactory inner, StructType raw, StructType decoded, ValueFormat format) {
            this.inner = inner;
            this.raw = raw;
            this.decoded = decoded;
            this.format = format;
        }

        public PartitionReader createReader(InputPartition partition) {
            boolean isColumnar = inner.supportColumnarReads(partition);
            PartitionReader reader = isColumnar ? inner.createColumnarReader(partition) : inner.createReader(partition);
            PartitionReader decoding = new DecodingReader(reader, isColumnar, this);
            return reader instanceof RealTimeReader ? new RealTimeReader.Decoded((RealTimeReader) reader, decoding)
                : decoding;
        }
    }

    /** Returns the rows of a reader, with their values decoded. One thread. */
    private static final class DecodingReader implements PartitionReader {
        private final PartitionReader inner;
        private final boolean isColumnar;
        private final StructType raw;
        private final StructField[] fields;
        private final int[] from;
        private final int bytesAt;
        private final ValueDecoder decoder;
        private Iterator rows;
        private InternalRow row;

        DecodingReader(PartitionReader inner, boolean isColumnar, DecodingFactory settings) {
            this.inner = inner;
            this.isColumnar = isColumnar;
            raw = settings.raw;
            fields = settings.decoded.fields();
            from = new int[fields.length];
            bytesAt = Columns.index(raw, Columns.VALUE);
            for (int i = 0; i < fields.length; i++) {
                from[i] = java.util.Arrays.asList(raw.fieldNames()).indexOf(fields[i].name());
            }
            int value = Columns.index(settings.decoded, Columns.VALUE);
            StructType all = settings.format.decoded(raw);
            decoder = bytesAt < 0 ? null
                : settings.format.decoder(value < 0 ? all.fields()[bytesAt].dataType() : fields[value].dataType());
        }

        public boolean next() throws IOException {
            while (isColumnar && (rows == null || !rows.hasNext())) {
                if (!inner.next()) {
                    return false;
                }
                rows = ((ColumnarBatch) inner.get()).rowIterator();
            }
            if (!isColumnar && !inner.next()) {
                return false;
            }
            row = (InternalRow) (isColumnar ? rows.next() : inner.get());
            return true;
        }

        public Object get() {
            byte[] bytes = bytesAt < 0 || row.isNullAt(bytesAt) ? null : row.getBinary(bytesAt);
            Object value = null;
            boolean isBad = false;
            try {
                value = bytes == null ? null : decoder.decode(bytes);
            } catch (ReadException error) {
                throw error;
            } catch (Exception error) {
                // The bytes are of another kind; the column undecoded has them.
                isBad = true;
            }
            Object[] values = new Object[fields.length];
            for (int i = 0; i < fields.length; i++) {
                if (from[i] < 0) {
                    values[i] = isBad ? bytes : null;
                } else if (from[i] == bytesAt) {
                    values[i] = value;
                } else {
                    values[i] = row.isNullAt(from[i]) ? null : row.get(from[i], fields[i].dataType());
                }
            }
            return new GenericInternalRow(values);
        }

        public CustomTaskMetric[] currentMetricsValues() {
            return inner.currentMetricsValues();
        }

        public void close() throws IOException {
            inner.close();
        }
    }
}
