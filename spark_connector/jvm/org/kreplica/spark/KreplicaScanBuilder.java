package org.kreplica.spark;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** Takes over from Spark what reduces a read: columns, filters, a limit, a count. One thread. */
final class KreplicaScanBuilder implements SupportsPushDownRequiredColumns, SupportsPushDownV2Filters,
    SupportsPushDownLimit, SupportsPushDownAggregates {
    private final LazyOptions options;
    private final PushedFilters filters = new PushedFilters();
    private final List pushed = new ArrayList();
    private StructType schema;
    private boolean counts;
    private int limit = -1;

    KreplicaScanBuilder(LazyOptions options, StructType schema) {
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
