package org.kreplica.spark;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.SortedMap;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;

/** A batch read, planned when it is first used; or the way to a stream. One thread. */
final class KreplicaScan implements Scan, Batch, SupportsReportStatistics {
    // The size of a row without its key and value.
    private static final long ROW_BYTES = 24;

    private final LazyOptions given;
    private final StructType schema;
    private final PushedFilters filters;
    private final boolean counts;
    private final int limit;
    private LogRange[] tasks;
    private boolean streams;
    private long rows;
    private long bytes;

    KreplicaScan(LazyOptions given, StructType schema, PushedFilters filters, boolean counts, int limit) {
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
        return "kreplica " + given.where() + (counts ? " [counts]" : "") + (limit >= 0 ? " [limit " + limit + "]" : "");
    }

    public Scan.ColumnarSupportMode columnarSupportMode() {
        return Scan.ColumnarSupportMode.SUPPORTED;
    }

    public Batch toBatch() {
        return this;
    }

    public MicroBatchStream toMicroBatchStream(String checkpoint) {
        streams = true;
        return new KreplicaStream(given.parse(true), schema);
    }

    public InputPartition[] planInputPartitions() {
        plan();
        return tasks;
    }

    public PartitionReaderFactory createReaderFactory() {
        return new ReaderFactory(schema, new ReadSettings(given.parse(false)), limit, counts);
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
        ReadOptions options = given.parse(false);
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
}
