package org.kreplica.spark;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.SessionConfigSupport;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The provider through which KreplicaProvider appends the rows of a batch. */
public final class KreplicaAppend implements TableProvider, SessionConfigSupport {
    public String keyPrefix() {
        return KreplicaProvider.FORMAT;
    }

    public StructType inferSchema(CaseInsensitiveStringMap options) {
        return Columns.schema(true);
    }

    public Table getTable(StructType schema, Transform[] partitioning, Map properties) {
        return new KreplicaTable(KreplicaProvider.FORMAT, schema, properties, true);
    }

    public boolean supportsExternalMetadata() {
        return true;
    }
}
