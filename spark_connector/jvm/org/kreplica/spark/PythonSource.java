package org.kreplica.spark;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.types.StructType;

/** The data source in Python, which the session knows under a name of its own. */
final class PythonSource {
    /** As spark_connector registers it. */
    static final String FORMAT = "kreplica-python";

    Table table(StructType schema, Map options) {
        PythonDataSourceV2 source = new PythonDataSourceV2();
        source.setShortName(FORMAT);
        return source.getTable(schema, new Transform[0], options);
    }
}
