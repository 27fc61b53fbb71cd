package org.kreplica.spark;

import java.util.HashMap;
import java.util.Iterator;
import java.util.Locale;
import java.util.Map;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.SQLContext;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.connector.catalog.SessionConfigSupport;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.sources.BaseRelation;
import org.apache.spark.sql.sources.CreatableRelationProvider;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The provider of format("kreplica") if this jar is on the class path: for both readers and the sink.
 *
 * The session setting spark.datasource.kreplica.NAME sets the option NAME of every read and write.
 *
 * A batch write arrives through Spark's older interface, `createRelation`, as with Spark's Kafka sink. The newer one
 * refuses errorIfExists, which is the mode of `save` unless the user names another.
 */
public final class KreplicaProvider
    implements TableProvider, DataSourceRegister, SessionConfigSupport, CreatableRelationProvider {
    static final String FORMAT = "kreplica";
    static final Logger LOGGER = LoggerFactory.getLogger("org.kreplica.spark");
    /** What Spark's catalog stores with a table besides our options. */
    private static final String[] OF_THE_CATALOG = {
        TableCatalog.PROP_LOCATION, TableCatalog.PROP_IS_MANAGED_LOCATION, TableCatalog.PROP_EXTERNAL,
        TableCatalog.PROP_TABLE_TYPE, TableCatalog.PROP_COMMENT, TableCatalog.PROP_COLLATION,
        TableCatalog.PROP_PROVIDER, TableCatalog.PROP_OWNER, "transient_lastDdlTime",
    };

    public String shortName() {
        return FORMAT;
    }

    public String keyPrefix() {
        return FORMAT;
    }

    public StructType inferSchema(CaseInsensitiveStringMap options) {
        boolean withHeaders = "true".equalsIgnoreCase(String.valueOf(options.get("includeHeaders")).trim());
        ValueFormat format = ValueFormat.of(options.asCaseSensitiveMap());
        StructType columns = Columns.schema(withHeaders);
        return format == null ? columns : format.decoded(columns);
    }

    public Table getTable(StructType schema, Transform[] partitioning, Map properties) {
        return new KreplicaTable(FORMAT, schema, options(properties), false);
    }

    public boolean supportsExternalMetadata() {
        return true;
    }

    /** Appends the rows. Raises ReadException for the modes overwrite and ignore. */
    public BaseRelation createRelation(final SQLContext context, SaveMode mode,
        scala.collection.immutable.Map parameters, final Dataset rows) {
        if (mode != SaveMode.Append && mode != SaveMode.ErrorIfExists) {
            throw new ReadException(AppendWrite.APPEND_ONLY);
        }
        AppendWrite.append(rows, options(CollectionConverters.asJava(parameters)));
        return new BaseRelation() {
            public SQLContext sqlContext() {
                return context;
            }

            public StructType schema() {
                return rows.schema();
            }
        };
    }

    /** Leaves it to the sink to check the types. */
    public boolean supportsDataType(DataType type) {
        return true;
    }

    /** Returns the options of a table, without what a catalog stores besides. */
    private static Map options(Map properties) {
        Map found = new HashMap();
        for (Iterator i = properties.entrySet().iterator(); i.hasNext();) {
            Map.Entry entry = (Map.Entry) i.next();
            String name = (String) entry.getKey();
            if (!isOfTheCatalog(name) && !name.toLowerCase(Locale.ROOT).startsWith(TableCatalog.OPTION_PREFIX)) {
                found.put(name, entry.getValue());
            }
        }
        return found;
    }

    private static boolean isOfTheCatalog(String name) {
        for (int i = 0; i < OF_THE_CATALOG.length; i++) {
            if (OF_THE_CATALOG[i].equalsIgnoreCase(name)) {
                return true;
            }
        }
        return false;
    }
}
