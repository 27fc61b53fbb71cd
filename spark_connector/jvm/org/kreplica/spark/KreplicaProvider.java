package org.kreplica.spark;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.SessionConfigSupport;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.kreplica.spark.KreplicaTable.PythonSource;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The provider of format("kreplica") if this jar is on the class path: for both readers and the sink.
 *
 * The session setting spark.datasource.kreplica.NAME sets the option NAME of every read and write.
 */
public final class KreplicaProvider implements TableProvider, DataSourceRegister, SessionConfigSupport {
    static final String FORMAT = "kreplica";
    static final Logger LOGGER = LoggerFactory.getLogger("org.kreplica.spark");

    public String shortName() {
        return FORMAT;
    }

    public String keyPrefix() {
        return FORMAT;
    }

    public StructType inferSchema(CaseInsensitiveStringMap options) {
        return Columns.schema("true".equalsIgnoreCase(String.valueOf(options.get("includeHeaders")).trim()));
    }

    public Table getTable(StructType schema, Transform[] partitioning, Map properties) {
        return new KreplicaTable(schema, properties, new PythonSource());
    }

    public boolean supportsExternalMetadata() {
        return true;
    }
}
