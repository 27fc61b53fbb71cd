package org.kreplica.spark;

import java.util.EnumSet;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Logs as a table: reads directories here, and passes everything else to Python. */
final class KreplicaTable implements SupportsRead, SupportsWrite {
    private final StructType schema;
    private final Map given;
    private final PythonSource python;

    KreplicaTable(StructType schema, Map given, PythonSource python) {
        this.schema = schema;
        this.given = given;
        this.python = python;
    }

    public String name() {
        return KreplicaProvider.FORMAT;
    }

    public Column[] columns() {
        StructField[] fields = schema.fields();
        Column[] columns = new Column[fields.length];
        for (int i = 0; i < fields.length; i++) {
            columns[i] = Column.create(fields[i].name(), fields[i].dataType(), fields[i].nullable());
        }
        return columns;
    }

    public Set capabilities() {
        return EnumSet.of(TableCapability.BATCH_READ, TableCapability.BATCH_WRITE, TableCapability.MICRO_BATCH_READ,
            TableCapability.STREAMING_WRITE, TableCapability.TRUNCATE);
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        Map all = new HashMap(given);
        all.putAll(options.asCaseSensitiveMap());
        String reason = ReaderChoice.reasonForPython(all);
        if (reason == null) {
            Columns.check(schema);
            return new KreplicaScanBuilder(new LazyOptions(all), schema);
        }
        return ((SupportsRead) python.table(schema, given, schema, options)).newScanBuilder(options);
    }

    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        Map all = new HashMap(given);
        all.putAll(info.options().asCaseSensitiveMap());
        OptionTable.check(new GivenOptions(all), OptionTable.WRITE);
        return ((SupportsWrite) python.table(schema, given, info.schema(), info.options())).newWriteBuilder(info);
    }
}
