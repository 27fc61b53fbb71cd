package org.kreplica.spark;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.Set;
import java.util.SortedMap;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.SortDirection;
import org.apache.spark.sql.connector.expressions.SortOrder;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.connector.read.SupportsReportOrdering;
import org.apache.spark.sql.connector.read.SupportsReportPartitioning;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.SupportsRuntimeV2Filtering;
import org.apache.spark.sql.connector.read.colstats.ColumnStatistics;
import org.apache.spark.sql.connector.read.partitioning.KeyGroupedPartitioning;
import org.apache.spark.sql.connector.read.partitioning.Partitioning;
import org.apache.spark.sql.connector.read.partitioning.UnknownPartitioning;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.kreplica.spark.Planner.LogRange;
import org.kreplica.spark.ReaderFactory.ReadSettings;

/** A batch read, planned when it is first used; or the way to a stream. One thread. */
final class KreplicaScan implements Scan, Batch, SupportsReportStatistics, SupportsReportPartitioning,
    SupportsReportOrdering, SupportsRuntimeV2Filtering {
    // The size of a row without its key and value.
    private static final long ROW_BYTES = 24;

    // Parsed late, because their meaning depends on whether a batch or a stream is read.
    private final Map given;
    private final StructType schema;
    private final PushedFilters filters;
    private final boolean counts;
    private final int limit;
    private LogRange[] tasks;
    /** Null for a batch. */
    private KreplicaStream stream;
    private long rows;
    private long bytes;

    KreplicaScan(Map given, StructType schema, PushedFilters filters, boolean counts, int limit) {
        this.given = given;
        this.schema = schema;
        this.filters = filters;
        this.counts = counts;
        this.limit = limit;
    }

    public StructType readSchema() {
        return schema;
    }

    public String description() {
        String limited = limit >= 0 ? " [limit " + limit + "]" : "";
        String counted = counts ? " [" + String.join(", ", schema.fieldNames()) + "]" : "";
        return "kreplica " + ReadOptions.places(given).where() + filters + counted + limited;
    }

    public CustomMetric[] supportedCustomMetrics() {
        return ReadMetrics.all();
    }

    // ---- what Spark's planner may know of the rows -----------------------------------------------------------------

    /** Reports that a task has the records of one partition, if the rows name it. */
    public Partitioning outputPartitioning() {
        plan();
        if (counts || !has(Columns.TOPIC) || !has(Columns.PARTITION)) {
            return new UnknownPartitioning(tasks.length);
        }
        Set found = new HashSet();
        for (int i = 0; i < tasks.length; i++) {
            found.add(tasks[i].at);
        }
        Expression[] keys = {Expressions.identity("topic"), Expressions.identity("partition")};
        return new KeyGroupedPartitioning(keys, found.size());
    }

    /** Reports that the records of a task are in the order of their offsets. */
    public SortOrder[] outputOrdering() {
        if (counts || !has(Columns.OFFSET)) {
            return new SortOrder[0];
        }
        return new SortOrder[] {Expressions.sort(Expressions.column("offset"), SortDirection.ASCENDING)};
    }

    /** Returns the columns by which a join may leave out whole tasks, once it knows its other side. */
    public NamedReference[] filterAttributes() {
        List found = new ArrayList();
        int[] columns = {Columns.TOPIC, Columns.PARTITION, Columns.OFFSET};
        for (int i = 0; i < columns.length; i++) {
            if (!counts && has(columns[i])) {
                found.add(Expressions.column(Columns.name(columns[i])));
            }
        }
        return (NamedReference[]) found.toArray(new NamedReference[0]);
    }

    public void filter(Predicate[] predicates) {
        plan();
        PushedFilters found = new PushedFilters();
        found.push(predicates, new ArrayList());
        List left = new ArrayList();
        for (int i = 0; i < tasks.length; i++) {
            LogRange range = found.admits(tasks[i].at) ? found.within(tasks[i]) : null;
            if (range != null && range.start < range.stop) {
                left.add(range);
            }
        }
        tasks = (LogRange[]) left.toArray(new LogRange[0]);
    }

    private boolean has(int column) {
        return Columns.index(schema, column) >= 0;
    }

    public Scan.ColumnarSupportMode columnarSupportMode() {
        // In real-time mode Spark takes row by row.
        return stream != null && stream.isRealTime() ? Scan.ColumnarSupportMode.UNSUPPORTED
            : Scan.ColumnarSupportMode.SUPPORTED;
    }

    public Batch toBatch() {
        return this;
    }

    public MicroBatchStream toMicroBatchStream(String checkpoint) {
        stream = new KreplicaStream(new ReadOptions(given, true), schema);
        return stream;
    }

    public InputPartition[] planInputPartitions() {
        plan();
        return tasks;
    }

    public PartitionReaderFactory createReaderFactory() {
        return new ReaderFactory(schema, new ReadSettings(new ReadOptions(given, false)), limit, counts);
    }

    /** Estimates rows and bytes from offsets and file sizes, as upper bounds: gaps count. Unknown for a stream. */
    public Statistics estimateStatistics() {
        if (stream == null) {
            plan();
        }
        return new Statistics() {
            public OptionalLong sizeInBytes() {
                return stream != null ? OptionalLong.empty() : OptionalLong.of(bytes);
            }

            public OptionalLong numRows() {
                return stream != null ? OptionalLong.empty() : OptionalLong.of(rows);
            }

            public Map columnStats() {
                return stream != null || counts ? Collections.emptyMap() : ColumnFacts.of(schema, tasks, rows);
            }
        };
    }

    private void plan() {
        if (tasks != null) {
            return;
        }
        ReadOptions options = new ReadOptions(given, false);
        for (int attempt = 1; tasks == null; attempt++) {
            try {
                plan(options);
            } catch (IOException error) {
                Planner.requireAnotherLook(error, attempt);
            }
        }
    }

    private void plan(ReadOptions options) throws IOException {
        Planner planner = new Planner(options);
        try {
            plan(options, planner);
        } finally {
            planner.source.close();
        }
    }

    private void plan(ReadOptions options, Planner planner) throws IOException {
        SortedMap bounds = planner.bounds(planner.subscribed(true));
        SortedMap starts = planner.resolve(options.starting, bounds, true);
        SortedMap stops = planner.resolve(options.ending, bounds, false);
        planner.checkOrder(starts, stops, bounds);
        for (Iterator i = bounds.keySet().iterator(); i.hasNext();) {
            if (!filters.admits((TopicPartition) i.next())) {
                i.remove();
            }
        }
        SortedMap times = planner.offsetsFrom(filters.fromTime(), bounds);
        List ranges = new ArrayList();
        rows = 0;
        bytes = 0;
        for (Iterator i = bounds.keySet().iterator(); i.hasNext();) {
            TopicPartition at = (TopicPartition) i.next();
            LogRange whole = planner.range(at, KreplicaStream.offset(starts, at), KreplicaStream.offset(stops, at));
            LogRange range = filters.apply(whole, (Long) times.get(at));
            ranges.add(range);
            estimate(range, planner.source);
        }
        LogRange[] found = planner.split(ranges);
        // A count of nothing is a row, too.
        tasks = found.length == 0 && counts ? new LogRange[] {LogRange.NOTHING} : found;
    }

    private void estimate(LogRange range, LogSource source) throws IOException {
        rows += Math.max(0, range.stop - range.start);
        boolean small = true;
        for (int i = 0; i < schema.fields().length; i++) {
            small = small && Columns.number(schema.fields()[i].name()) > Columns.VALUE;
        }
        bytes += source.bytes(range.at, range.start, range.stop);
        bytes = small ? rows * ROW_BYTES : bytes;
    }

    /** Takes over from Spark what reduces a read: columns, filters, a limit, a count. One thread. */
    static final class KreplicaScanBuilder implements SupportsPushDownRequiredColumns, SupportsPushDownV2Filters,
        SupportsPushDownLimit, SupportsPushDownAggregates {
        private final Map options;
        private final PushedFilters filters = new PushedFilters();
        private final List pushed = new ArrayList();
        private StructType schema;
        private boolean counts;
        private int limit = -1;

        KreplicaScanBuilder(Map options, StructType schema) {
            this.options = options;
            this.schema = schema;
        }

        public void pruneColumns(StructType required) {
            if (!counts) {
                schema = required;
            }
        }

        public Predicate[] pushPredicates(Predicate[] predicates) {
            return filters.push(predicates, pushed);
        }

        public Predicate[] pushedPredicates() {
            return (Predicate[]) pushed.toArray(new Predicate[0]);
        }

        public boolean pushLimit(int rows) {
            limit = rows;
            return true;
        }

        /**
         * Pushes COUNT(*), MIN(offset) and MAX(offset), of everything or by topic and partition. Each task returns its
         * part.
         */
        public boolean pushAggregation(Aggregation aggregation) {
            AggregateFunc[] functions = aggregation.aggregateExpressions();
            Expression[] groups = aggregation.groupByExpressions();
            StructField[] fields = new StructField[groups.length + functions.length];
            for (int i = 0; i < groups.length; i++) {
                String[] names = groups[i] instanceof NamedReference ? ((NamedReference) groups[i]).fieldNames()
                    : new String[0];
                int column = names.length == 1 ? Columns.number(names[0]) : -1;
                if (column != Columns.TOPIC && column != Columns.PARTITION) {
                    return false;
                }
                fields[i] = schema.apply(schema.fieldIndex(names[0]));
            }
            for (int i = 0; i < functions.length; i++) {
                String name = CountReader.nameOf(functions[i]);
                if (name == null) {
                    return false;
                }
                fields[groups.length + i] = DataTypes.createStructField(name, DataTypes.LongType, true);
            }
            schema = DataTypes.createStructType(fields);
            counts = true;
            return true;
        }

        public Scan build() {
            return new KreplicaScan(options, schema, filters, counts, limit);
        }
    }
}

/** What a plan knows of the columns: how many values there are at most, and between which offsets. Immutable. */
final class ColumnFacts implements ColumnStatistics {
    private final long distinct;
    private final Object least;
    private final Object most;

    private ColumnFacts(long distinct, Object least, Object most) {
        this.distinct = distinct;
        this.least = least;
        this.most = most;
    }

    static Map of(StructType schema, LogRange[] tasks, long rows) {
        Set topics = new HashSet();
        Set partitions = new HashSet();
        long first = Long.MAX_VALUE;
        long last = 0;
        for (int i = 0; i < tasks.length; i++) {
            topics.add(tasks[i].at.topic);
            partitions.add(Integer.valueOf(tasks[i].at.partition));
            first = Math.min(first, tasks[i].start);
            last = Math.max(last, tasks[i].stop - 1);
        }
        Map found = new HashMap();
        if (tasks.length > 0) {
            put(found, schema, Columns.TOPIC, new ColumnFacts(topics.size(), null, null));
            put(found, schema, Columns.PARTITION, new ColumnFacts(partitions.size(), null, null));
            long offsets = Math.min(rows, last - first + 1);
            put(found, schema, Columns.OFFSET, new ColumnFacts(offsets, Long.valueOf(first), Long.valueOf(last)));
        }
        return found;
    }

    private static void put(Map found, StructType schema, int column, ColumnFacts facts) {
        if (Columns.index(schema, column) >= 0) {
            found.put(Expressions.column(Columns.name(column)), facts);
        }
    }

    public OptionalLong distinctCount() {
        return OptionalLong.of(distinct);
    }

    public Optional min() {
        return Optional.ofNullable(least);
    }

    public Optional max() {
        return Optional.ofNullable(most);
    }

    public OptionalLong nullCount() {
        return OptionalLong.of(0);
    }
}
