package org.kreplica.spark;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.SortedMap;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.kreplica.spark.LogEnd.Bounds;
import org.kreplica.spark.Planner.LogRange;
import org.kreplica.spark.ReaderFactory.ReadSettings;

/** A batch read, planned when it is first used; or the way to a stream. One thread. */
final class KreplicaScan implements Scan, Batch, SupportsReportStatistics {
    // The size of a row without its key and value.
    private static final long ROW_BYTES = 24;

    // Parsed late, because their meaning depends on whether a batch or a stream is read.
    private final Map given;
    private final StructType schema;
    private final PushedFilters filters;
    private final boolean counts;
    private final int limit;
    private LogRange[] tasks;
    private boolean streams;
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
        return "kreplica " + new GivenOptions(given).where() + (counts ? " [counts]" : "") + limited;
    }

    public Scan.ColumnarSupportMode columnarSupportMode() {
        return Scan.ColumnarSupportMode.SUPPORTED;
    }

    public Batch toBatch() {
        return this;
    }

    public MicroBatchStream toMicroBatchStream(String checkpoint) {
        streams = true;
        return new KreplicaStream(new ReadOptions(given, true), schema);
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
        if (!streams) {
            plan();
        }
        return new Statistics() {
            public OptionalLong sizeInBytes() {
                return streams ? OptionalLong.empty() : OptionalLong.of(bytes);
            }

            public OptionalLong numRows() {
                return streams ? OptionalLong.empty() : OptionalLong.of(rows);
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
        SortedMap bounds = planner.bounds(planner.subscribed(true));
        SortedMap starts = planner.resolve(options.starting, bounds, true);
        SortedMap stops = planner.resolve(options.ending, bounds, false);
        planner.checkOrder(starts, stops, bounds);
        List ranges = new ArrayList();
        rows = 0;
        bytes = 0;
        for (Iterator i = bounds.entrySet().iterator(); i.hasNext();) {
            Map.Entry entry = (Map.Entry) i.next();
            TopicPartition at = (TopicPartition) entry.getKey();
            if (filters.admits(at)) {
                LogRange whole =
                    planner.range(at, KreplicaStream.offset(starts, at), KreplicaStream.offset(stops, at));
                LogRange range = filters.apply(whole, planner.log(at), ((Bounds) entry.getValue()).logEnd);
                ranges.add(range);
                estimate(range, planner.log(at));
            }
        }
        LogRange[] found = planner.split(ranges);
        // A count of nothing is a row, too.
        tasks = found.length == 0 && counts ? new LogRange[] {LogRange.NOTHING} : found;
    }

    private void estimate(LogRange range, PartitionLog log) {
        rows += Math.max(0, range.stop - range.start);
        boolean small = true;
        for (int i = 0; i < schema.fields().length; i++) {
            small = small && Columns.number(schema.fields()[i].name()) > Columns.VALUE;
        }
        for (int i = log.segmentOf(range.start); i < log.segments.length; i++) {
            if (log.segments[i].baseOffset < range.stop && range.start < range.stop) {
                bytes += log.segments[i].size;
            }
        }
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

        /** Pushes COUNT(*), of everything or by topic and partition; each task counts its part. */
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
                if (!(functions[i] instanceof CountStar)) {
                    return false;
                }
                fields[groups.length + i] = DataTypes.createStructField("count(*)", DataTypes.LongType, false);
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
