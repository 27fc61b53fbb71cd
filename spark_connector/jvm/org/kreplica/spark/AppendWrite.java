package org.kreplica.spark;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.V1Write;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;
import org.apache.spark.sql.sources.InsertableRelation;

/**
 * A write into logs, which can only be appended to.
 *
 * A stream in output mode update or complete appends the rows of each batch, as with Spark's Kafka sink. A batch that
 * would replace what is there is refused. One thread.
 */
final class AppendWrite implements V1Write {
    static final String APPEND_ONLY = "a log can only be appended to: use mode append";

    private final KreplicaTable table;
    private final Map options;
    private final LogicalWriteInfo info;
    private final boolean replaces;
    private Write write;
    private StreamingWrite sink;

    private AppendWrite(KreplicaTable table, Map options, LogicalWriteInfo info, boolean replaces) {
        this.table = table;
        this.options = options;
        this.info = info;
        this.replaces = replaces;
    }

    /** Returns the write of the Python sink. */
    private Write write() {
        if (write == null) {
            write = PythonHalf.newWriteBuilder(table.struct(), options, info).build();
        }
        return write;
    }

    public String description() {
        return "kreplica " + new GivenOptions(options).where();
    }

    public String toString() {
        return description();
    }

    public BatchWrite toBatch() {
        if (replaces) {
            throw new ReadException(APPEND_ONLY);
        }
        return write().toBatch();
    }

    /** Returns the write as Spark's older interface has it; Spark asks for it if the table is a KreplicaProvider's. */
    public InsertableRelation toInsertableRelation() {
        if (replaces) {
            throw new ReadException(APPEND_ONLY);
        }
        return new InsertableRelation() {
            public void insert(Dataset rows, boolean overwrite) {
                append(rows, options);
            }
        };
    }

    /** Appends the rows: their columns that a sink knows. */
    static void append(Dataset rows, Map options) {
        List known = new ArrayList();
        String[] names = rows.columns();
        boolean hasValue = false;
        for (int i = 0; i < names.length; i++) {
            hasValue = hasValue || Columns.number(names[i]) == Columns.VALUE;
            if (Columns.isWritten(names[i])) {
                known.add(rows.col("`" + names[i].replace("`", "``") + "`"));
            }
        }
        if (!hasValue) {
            throw RowPlaces.withoutValue(names);
        }
        rows.select((Column[]) known.toArray(new Column[0])).write().format(KreplicaAppend.class.getName())
            .options(options).mode(SaveMode.Append).save();
    }

    public StreamingWrite toStreaming() {
        sink = table.sink(options, info);
        return sink == null ? write().toStreaming() : sink;
    }

    public CustomMetric[] supportedCustomMetrics() {
        return sink == null ? write().supportedCustomMetrics() : new CustomMetric[0];
    }

    public CustomTaskMetric[] reportDriverMetrics() {
        return sink == null ? write().reportDriverMetrics() : new CustomTaskMetric[0];
    }

    /** Builds the write, whatever the output mode. One thread. */
    static final class AppendBuilder implements SupportsTruncate, SupportsStreamingUpdateAsAppend {
        private final KreplicaTable table;
        private final Map options;
        private final LogicalWriteInfo info;
        private boolean replaces;

        AppendBuilder(KreplicaTable table, Map options, LogicalWriteInfo info) {
            this.table = table;
            this.options = options;
            this.info = info;
        }

        public WriteBuilder truncate() {
            replaces = true;
            return this;
        }

        public Write build() {
            return new AppendWrite(table, options, info, replaces);
        }
    }
}
