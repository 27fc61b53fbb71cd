package org.kreplica.spark;

import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** The columns of format("kafka"); a user's schema may select some of them. */
final class Columns {
    static final int KEY = 0;
    static final int VALUE = 1;
    static final int TOPIC = 2;
    static final int PARTITION = 3;
    static final int OFFSET = 4;
    static final int TIMESTAMP = 5;
    static final int TIMESTAMP_TYPE = 6;
    static final int HEADERS = 7;

    private static final String[] NAMES =
        {"key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"};
    private static final DataType[] TYPES = {
        DataTypes.BinaryType, DataTypes.BinaryType, DataTypes.StringType, DataTypes.IntegerType, DataTypes.LongType,
        DataTypes.TimestampType, DataTypes.IntegerType, headersType(),
    };

    private Columns() {
    }

    private static DataType headersType() {
        StructField key = DataTypes.createStructField("key", DataTypes.StringType, true);
        StructField value = DataTypes.createStructField("value", DataTypes.BinaryType, true);
        return new ArrayType(DataTypes.createStructType(new StructField[] {key, value}), true);
    }

    static StructType schema(boolean withHeaders) {
        StructField[] fields = new StructField[withHeaders ? NAMES.length : HEADERS];
        for (int i = 0; i < fields.length; i++) {
            fields[i] = DataTypes.createStructField(NAMES[i], TYPES[i], true);
        }
        return DataTypes.createStructType(fields);
    }

    /** Returns the number of the column with this name, in any case, -1 if it does not exist. */
    static int number(String name) {
        for (int i = 0; i < NAMES.length; i++) {
            if (NAMES[i].equalsIgnoreCase(name)) {
                return i;
            }
        }
        return -1;
    }

    static String name(int number) {
        return NAMES[number];
    }

    /** Returns the place of a column in a schema, -1 if it is not there. */
    static int index(StructType schema, int number) {
        StructField[] fields = schema.fields();
        for (int i = 0; i < fields.length; i++) {
            if (number(fields[i].name()) == number) {
                return i;
            }
        }
        return -1;
    }

    /** Returns whether a sink takes the column; it ignores others, as Spark's Kafka sink does. */
    static boolean isWritten(String name) {
        int number = number(name);
        return number >= 0 && number <= PARTITION || number == HEADERS;
    }

    /** Returns whether a column has this type. */
    static boolean fits(int number, DataType type) {
        return TYPES[number].sameType(type);
    }

    static String typeName(int number) {
        return TYPES[number].simpleString();
    }

    /** Checks a user's schema. Raises ReadException for an unknown column or a wrong type. */
    static void check(StructType schema) {
        StructField[] fields = schema.fields();
        for (int i = 0; i < fields.length; i++) {
            String name = fields[i].name();
            int number = number(name);
            if (number < 0) {
                throw new ReadException("schema: unknown column '" + name + "'; there are " + String.join(", ", NAMES));
            }
            boolean isText = number <= VALUE && fields[i].dataType().sameType(DataTypes.StringType);
            if (!isText && !TYPES[number].sameType(fields[i].dataType())) {
                throw new ReadException("schema: column " + name + " is " + TYPES[number].simpleString() + ", not "
                    + fields[i].dataType().simpleString());
            }
        }
    }
}
