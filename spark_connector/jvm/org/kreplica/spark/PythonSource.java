package org.kreplica.spark;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.Platform;
import scala.Some;

/** The data source in Python, which the session has registered under its own name. */
final class PythonSource {
    /** The name under which spark_connector registers it. */
    static final String FORMAT = "kreplica-python";

    /** Returns the table for these options. Raises ReadException if workers lack the packages. */
    Table table(StructType schema, Map given, StructType asked, CaseInsensitiveStringMap options) {
        PythonDataSourceV2 source = new PythonDataSourceV2();
        source.setShortName(FORMAT);
        try {
            Table table = source.getTable(schema, new Transform[0], given);
            // Spark would do this later, and then skip it.
            source.getOrCreateDataSourceInPython(FORMAT, options, new Some(asked));
            return table;
        } catch (Exception error) {
            String text = String.valueOf(error.getMessage());
            if (isOfAnotherPython(text)) {
                throw new ReadException("Spark's workers run another Python than the driver: set PYSPARK_PYTHON to "
                    + System.getProperty("kreplica.driver.python", "the driver's") + "\n" + text, error);
            }
            // As it is: a method of Scala's declares none, and raises any.
            Platform.throwException(error);
            return null;
        }
    }

    private static boolean isOfAnotherPython(String text) {
        String[] signs = {"ModuleNotFoundError", "No module named", "PYTHON_VERSION_MISMATCH", "Cannot run program"};
        for (int i = 0; i < signs.length; i++) {
            if (text.contains(signs[i])) {
                return true;
            }
        }
        return false;
    }
}
