package org.kreplica.spark;

import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.io.Serializable;
import java.net.URI;
import java.net.URLConnection;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.avro.Conversions;
import org.apache.avro.LogicalTypes;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericFixed;
import org.apache.avro.generic.IndexedRecord;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Encoders;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.json.JsonToStructsEvaluator;
import org.apache.spark.sql.catalyst.util.ArrayBasedMapData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;
import org.kreplica.spark.ProtobufValues.ProtobufDecoder;
import scala.Some;

/**
 * What the option value.format says: the type of the column value, and how its bytes become values of it.
 *
 * value.schema is the schema, or a file or URL that has it, or an answer of a schema registry. Without it that of JSON
 * is inferred from the first records. Bytes may begin with the five bytes by which Confluent's serializers name a
 * schema. Avro needs the schema that a value was written with: value.registry is the URL of a registry, or a JSON file
 * with the schemas by id. Protobuf's says which message a value is. Immutable.
 */
final class ValueFormat implements Serializable {
    static final String FORMAT = "value.format";
    /** The column with the bytes that could not be decoded. */
    static final String UNDECODED = "undecoded";
    private static final long serialVersionUID = 1;
    static final String SCHEMA = "value.schema";
    static final String MESSAGE = "value.message";
    static final String REGISTRY = "value.registry";
    private static final String STRING = "string";
    private static final String JSON = "json";
    private static final String AVRO = "avro";
    private static final String PROTOBUF = "protobuf";
    private static final int SAMPLE = 1000;

    final String name;
    private final DataType type;
    // The text of Avro's schema, or a ProtobufSchema.
    private final Serializable schema;
    private final String registry;

    private ValueFormat(String name, DataType type, Serializable schema, String registry) {
        this.name = name;
        this.type = type;
        this.schema = schema;
        this.registry = registry;
    }

    /** Returns the format that the options name, null if they name none. Raises ReadException. */
    static ValueFormat of(Map given) {
        GivenOptions options = new GivenOptions(given);
        if (!options.has(FORMAT)) {
            if (options.has(SCHEMA) || options.has(REGISTRY) || options.has(MESSAGE)) {
                throw new ReadException(SCHEMA + ", " + MESSAGE + " and " + REGISTRY + " need the option " + FORMAT);
            }
            return null;
        }
        String name = options.choice(FORMAT, new String[] {STRING, JSON, AVRO, PROTOBUF});
        String registry = options.text(REGISTRY);
        refuse(options, SCHEMA, name, new String[] {STRING});
        refuse(options, MESSAGE, name, new String[] {STRING, JSON, AVRO});
        refuse(options, REGISTRY, name, new String[] {STRING, JSON});
        if (name.equals(STRING)) {
            return new ValueFormat(name, DataTypes.StringType, null, null);
        }
        if (name.equals(JSON)) {
            DataType type = options.has(SCHEMA) ? parsed(Texts.schema(options.text(SCHEMA))) : inferred(given);
            return new ValueFormat(name, type, null, null);
        }
        if (!options.has(SCHEMA)) {
            throw new ReadException(SCHEMA + (name.equals(AVRO) ? ": give the schema of Avro, or a file or URL that has it"
                : ": name the file that protoc --include_imports --descriptor_set_out writes"));
        }
        if (name.equals(PROTOBUF)) {
            ProtobufSchema found = ProtobufSchema.of(options.text(SCHEMA), options.text(MESSAGE), registry);
            return new ValueFormat(name, ProtobufValues.type(found.descriptor()), found, registry);
        }
        String schema = Texts.schema(options.text(SCHEMA));
        try {
            DataType type = AvroTypes.of(new Schema.Parser().parse(schema));
            return new ValueFormat(name, type, schema, registry);
        } catch (org.apache.avro.AvroRuntimeException error) {
            throw new ReadException(SCHEMA + ": not a schema of Avro: " + error.getMessage());
        }
    }

    /** Returns whether an option is one of these, which no reader has to know. */
    static boolean isOption(String name) {
        return name.equalsIgnoreCase(FORMAT) || name.equalsIgnoreCase(SCHEMA) || name.equalsIgnoreCase(MESSAGE)
            || name.equalsIgnoreCase(REGISTRY);
    }

    private static void refuse(GivenOptions options, String option, String format, String[] others) {
        if (options.has(option) && Arrays.asList(others).contains(format)) {
            throw new ReadException(option + ": has no effect with the format " + format + ". Remove it");
        }
    }

    private static DataType parsed(String schema) {
        try {
            return schema.startsWith("{") ? DataType.fromJson(schema) : DataType.fromDDL(schema);
        } catch (Exception error) {
            // Spark's message begins with an empty line, and shows the text below.
            String why = String.valueOf(error.getMessage()).trim().split("\n")[0];
            throw new ReadException(SCHEMA + ": not a schema such as 'id long, name string': " + why);
        }
    }

    /** Reads the first records, to see what fields their JSON has. */
    private static DataType inferred(Map given) {
        Map raw = new HashMap();
        for (java.util.Iterator i = given.entrySet().iterator(); i.hasNext();) {
            Map.Entry each = (Map.Entry) i.next();
            String option = ((String) each.getKey()).toLowerCase(java.util.Locale.ROOT);
            boolean isOfStreams = option.equals("maxoffsetspertrigger") || option.equals("minoffsetspertrigger")
                || option.equals("maxtriggerdelay") || option.startsWith("starting") || option.startsWith("ending");
            if (!isOption(option) && !isOfStreams) {
                raw.put(each.getKey(), each.getValue());
            }
        }
        SparkSession session = SparkSession.active();
        Dataset texts = session.read().format(KreplicaProvider.FORMAT).options(raw).load()
            .selectExpr(new String[] {"cast(value as string)"}).limit(SAMPLE).as(Encoders.STRING());
        StructType found = session.read().option("mode", "DROPMALFORMED").json(texts).schema();
        if (found.fields().length == 0) {
            throw new ReadException(SCHEMA + ": give the schema of the values: the first records have no JSON objects");
        }
        return found;
    }

    /** Returns the columns of a source with this format: value has its type, and undecoded is added. */
    StructType decoded(StructType columns) {
        StructField[] fields = columns.fields();
        List found = new ArrayList();
        for (int i = 0; i < fields.length; i++) {
            boolean isValue = Columns.number(fields[i].name()) == Columns.VALUE;
            found.add(isValue ? DataTypes.createStructField(fields[i].name(), type, true) : fields[i]);
        }
        found.add(DataTypes.createStructField(UNDECODED, DataTypes.BinaryType, true));
        return DataTypes.createStructType(found);
    }

    /** Returns the decoder of values of a type, which may lack fields of this format's. One thread uses it. */
    ValueDecoder decoder(DataType wanted) {
        if (name.equals(STRING)) {
            return new TextDecoder();
        }
        if (name.equals(JSON)) {
            return new JsonDecoder(wanted);
        }
        check("value", wanted, type);
        return name.equals(AVRO)
            ? (ValueDecoder) new AvroDecoder(new Schema.Parser().parse((String) schema), wanted, registry)
            : new ProtobufDecoder(((ProtobufSchema) schema).descriptor(), (StructType) wanted, registry);
    }

    /** Raises ReadException unless `wanted`, a type that a user may have given, is `type` or lacks fields of it. */
    private static void check(String name, DataType wanted, DataType type) {
        if (wanted instanceof StructType && type instanceof StructType) {
            List names = Arrays.asList(((StructType) type).fieldNames());
            StructField[] fields = ((StructType) wanted).fields();
            for (int i = 0; i < fields.length; i++) {
                int at = names.indexOf(fields[i].name());
                if (at < 0) {
                    throw new ReadException("schema: " + name + " has no field " + fields[i].name() + ", only "
                        + String.join(", ", names));
                }
                check(name + "." + fields[i].name(), fields[i].dataType(), ((StructType) type).fields()[at].dataType());
            }
        } else if (wanted instanceof ArrayType && type instanceof ArrayType) {
            check(name, ((ArrayType) wanted).elementType(), ((ArrayType) type).elementType());
        } else if (wanted instanceof MapType && type instanceof MapType) {
            check(name, ((MapType) wanted).keyType(), ((MapType) type).keyType());
            check(name, ((MapType) wanted).valueType(), ((MapType) type).valueType());
        } else if (!wanted.equals(type)) {
            throw new ReadException("schema: " + name + " is " + type.simpleString() + ", not "
                + wanted.simpleString());
        }
    }

    /** Turns bytes into a value of Spark's; any exception says that they are of another kind. */
    interface ValueDecoder {
        Object decode(byte[] bytes) throws Exception;
    }

    /** Returns where the value begins: after the name of a schema, if there is one. */
    private static int start(byte[] bytes) {
        return bytes.length >= 5 && bytes[0] == 0 ? 5 : 0;
    }

    private static final class TextDecoder implements ValueDecoder {
        public Object decode(byte[] bytes) throws IOException {
            UTF8String found = UTF8String.fromBytes(bytes);
            if (!found.isValid()) {
                throw new IOException("invalid UTF-8");
            }
            return found;
        }
    }

    private static final class JsonDecoder implements ValueDecoder {
        private final JsonToStructsEvaluator evaluator;

        JsonDecoder(DataType type) {
            scala.collection.immutable.Map options = (scala.collection.immutable.Map)
                scala.collection.immutable.Map$.MODULE$.empty();
            evaluator = new JsonToStructsEvaluator((scala.collection.immutable.Map) options.updated("mode", "FAILFAST"),
                type, "", new Some("UTC"), false);
        }

        public Object decode(byte[] bytes) throws Exception {
            int start = start(bytes);
            Object found = evaluator.evaluate(UTF8String.fromBytes(bytes, start, bytes.length - start));
            if (found == null) {
                throw new IOException("no JSON of this schema");
            }
            return found;
        }
    }

    private static final class AvroDecoder implements ValueDecoder {
        private final Schema schema;
        private final DataType type;
        private final String registry;
        private final Map writers = new HashMap();
        private BinaryDecoder decoder;

        AvroDecoder(Schema schema, DataType type, String registry) {
            this.schema = schema;
            this.type = type;
            this.registry = registry;
        }

        public Object decode(byte[] bytes) throws Exception {
            int start = registry == null ? 0 : start(bytes);
            Integer id = start == 0 ? null : Integer.valueOf(ByteBuffer.wrap(bytes).getInt(1));
            if (!writers.containsKey(id)) {
                String text = id == null ? schema.toString() : Texts.ofRegistry(registry, id, false);
                writers.put(id, text == null ? null
                    : new GenericDatumReader(new Schema.Parser().parse(text), schema, new GenericData()));
            }
            GenericDatumReader reader = (GenericDatumReader) writers.get(id);
            if (reader == null) {
                throw new IOException("the registry has no schema " + id);
            }
            decoder = DecoderFactory.get().binaryDecoder(bytes, start, bytes.length - start, decoder);
            Object found = reader.read(null, decoder);
            if (!decoder.isEnd()) {
                throw new IOException("bytes after the value");
            }
            return AvroTypes.value(found, schema, type);
        }
    }

    /** Schemas from files, URLs and registries. */
    static final class Texts {
        private static final int TIMEOUT_MS = 10_000;

        private Texts() {
        }

        static boolean isUrl(String given) {
            return given != null && (given.startsWith("http://") || given.startsWith("https://"));
        }

        /** Returns the schema that the option has, or the file or URL that it names. */
        static String schema(String given) {
            String text = new String(bytes(given), StandardCharsets.UTF_8).trim();
            // The answer of a registry has the schema as a string.
            Object inner = text.startsWith("{") ? Json.member(SCHEMA, text, "schema") : null;
            return inner == null ? text : (String) inner;
        }

        /** Returns the bytes of the file or URL that the option names, or those of its text. */
        static byte[] bytes(String given) {
            if (!isUrl(given) && !given.startsWith("file:") && !given.startsWith("/")) {
                return given.getBytes(StandardCharsets.UTF_8);
            }
            try {
                return read(given);
            } catch (IOException error) {
                throw new ReadException(SCHEMA + ": " + given + " could not be read: " + error.getMessage());
            }
        }

        /** Returns a schema by its id, null without one. Raises ReadException if the registry cannot be read. */
        static String ofRegistry(String registry, Integer id, boolean isProtobuf) {
            boolean isUrl = isUrl(registry);
            String place = isUrl ? registry.replaceFirst("/+$", "") + "/schemas/ids/" + id : registry;
            place = isUrl && isProtobuf ? ProtobufSchema.serialized(place) : place;
            try {
                String text = new String(read(place), StandardCharsets.UTF_8);
                return Json.member(REGISTRY, text, isUrl ? "schema" : id.toString());
            } catch (IOException error) {
                if (isUrl && error instanceof FileNotFoundException) {
                    return null;
                }
                throw new ReadException(REGISTRY + ": " + place + " could not be read: " + error.getMessage());
            }
        }

        private static byte[] read(String place) throws IOException {
            if (place.startsWith("/")) {
                return Files.readAllBytes(new File(place).toPath());
            }
            URLConnection connection = URI.create(place).toURL().openConnection();
            connection.setConnectTimeout(TIMEOUT_MS);
            connection.setReadTimeout(TIMEOUT_MS);
            InputStream stream = connection.getInputStream();
            try {
                ByteArrayOutputStream found = new ByteArrayOutputStream();
                stream.transferTo(found);
                return found.toByteArray();
            } finally {
                stream.close();
            }
        }
    }

    /** Avro's types as Spark's, as far as they correspond; times are in microseconds. */
    static final class AvroTypes {
        private AvroTypes() {
        }

        static DataType of(Schema schema) {
            switch (schema.getType()) {
                case RECORD:
                    List fields = new ArrayList();
                    for (int i = 0; i < schema.getFields().size(); i++) {
                        Schema.Field field = (Schema.Field) schema.getFields().get(i);
                        fields.add(DataTypes.createStructField(field.name(), of(field.schema()), true));
                    }
                    return DataTypes.createStructType(fields);
                case ARRAY:
                    return DataTypes.createArrayType(of(schema.getElementType()), true);
                case MAP:
                    return DataTypes.createMapType(DataTypes.StringType, of(schema.getValueType()), true);
                case UNION:
                    return of(only(schema));
                case STRING:
                case ENUM:
                    return DataTypes.StringType;
                case BYTES:
                case FIXED:
                    return schema.getLogicalType() instanceof LogicalTypes.Decimal ? decimal(schema)
                        : DataTypes.BinaryType;
                case INT:
                    return schema.getLogicalType() instanceof LogicalTypes.Date ? DataTypes.DateType
                        : DataTypes.IntegerType;
                case LONG:
                    return isTime(schema) ? DataTypes.TimestampType : DataTypes.LongType;
                case FLOAT:
                    return DataTypes.FloatType;
                case DOUBLE:
                    return DataTypes.DoubleType;
                case BOOLEAN:
                    return DataTypes.BooleanType;
                default:
                    throw new ReadException(SCHEMA + ": Avro's type " + schema + " has no counterpart in Spark");
            }
        }

        private static DataType decimal(Schema schema) {
            LogicalTypes.Decimal type = (LogicalTypes.Decimal) schema.getLogicalType();
            return DataTypes.createDecimalType(type.getPrecision(), type.getScale());
        }

        private static boolean isTime(Schema schema) {
            return schema.getLogicalType() instanceof LogicalTypes.TimestampMillis
                || schema.getLogicalType() instanceof LogicalTypes.TimestampMicros;
        }

        /** Returns the type that a union has besides null. */
        private static Schema only(Schema union) {
            Schema found = null;
            for (int i = 0; i < union.getTypes().size(); i++) {
                Schema each = (Schema) union.getTypes().get(i);
                if (each.getType() != Schema.Type.NULL) {
                    if (found != null) {
                        throw new ReadException(SCHEMA + ": a union of several types has no counterpart in Spark: "
                            + union);
                    }
                    found = each;
                }
            }
            if (found == null) {
                throw new ReadException(SCHEMA + ": a union needs a type besides null");
            }
            return found;
        }

        static Object value(Object given, Schema schema, DataType type) {
            if (given == null) {
                return null;
            }
            switch (schema.getType()) {
                case RECORD:
                    return row((IndexedRecord) given, (StructType) type);
                case ARRAY:
                    return array((List) given, schema.getElementType(), ((ArrayType) type).elementType());
                case MAP:
                    return map((Map) given, schema.getValueType(), ((MapType) type).valueType());
                case UNION:
                    return value(given, only(schema), type);
                case STRING:
                case ENUM:
                    return UTF8String.fromString(given.toString());
                case BYTES:
                case FIXED:
                    return bytes(given, schema, type);
                case LONG:
                    boolean isMillis = schema.getLogicalType() instanceof LogicalTypes.TimestampMillis;
                    return isMillis ? (Object) Long.valueOf(Math.multiplyExact(((Long) given).longValue(), 1000L)) : given;
                default:
                    return given;
            }
        }

        private static Object row(IndexedRecord record, StructType type) {
            StructField[] fields = type.fields();
            Object[] values = new Object[fields.length];
            for (int i = 0; i < fields.length; i++) {
                Schema.Field field = record.getSchema().getField(fields[i].name());
                values[i] = value(record.get(field.pos()), field.schema(), fields[i].dataType());
            }
            return new GenericInternalRow(values);
        }

        private static GenericArrayData array(List given, Schema schema, DataType type) {
            Object[] values = new Object[given.size()];
            for (int i = 0; i < values.length; i++) {
                values[i] = value(given.get(i), schema, type);
            }
            return new GenericArrayData(values);
        }

        private static Object map(Map given, Schema schema, DataType type) {
            List keys = new ArrayList(new TreeMap(texts(given)).keySet());
            Map byText = texts(given);
            List values = new ArrayList();
            for (int i = 0; i < keys.size(); i++) {
                values.add(byText.get(keys.get(i)));
                keys.set(i, UTF8String.fromString((String) keys.get(i)));
            }
            return new ArrayBasedMapData(new GenericArrayData(keys.toArray()), array(values, schema, type));
        }

        private static Map texts(Map given) {
            Map found = new HashMap();
            for (java.util.Iterator i = given.entrySet().iterator(); i.hasNext();) {
                Map.Entry each = (Map.Entry) i.next();
                found.put(String.valueOf(each.getKey()), each.getValue());
            }
            return found;
        }

        private static Object bytes(Object given, Schema schema, DataType type) {
            if (type instanceof DecimalType) {
                Conversions.DecimalConversion conversion = new Conversions.DecimalConversion();
                java.math.BigDecimal found = schema.getType() == Schema.Type.BYTES
                    ? conversion.fromBytes((ByteBuffer) given, schema, schema.getLogicalType())
                    : conversion.fromFixed((GenericFixed) given, schema, schema.getLogicalType());
                return Decimal.apply(found, ((DecimalType) type).precision(), ((DecimalType) type).scale());
            }
            if (given instanceof GenericFixed) {
                return ((GenericFixed) given).bytes();
            }
            ByteBuffer buffer = (ByteBuffer) ((ByteBuffer) given).duplicate();
            byte[] found = new byte[buffer.remaining()];
            buffer.get(found);
            return found;
        }
    }
}
