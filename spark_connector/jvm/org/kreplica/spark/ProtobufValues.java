package org.kreplica.spark;

import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.ArrayBasedMapData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;
import org.kreplica.spark.ValueFormat.Texts;
import org.kreplica.spark.ValueFormat.ValueDecoder;
import org.sparkproject.spark_core.protobuf.ByteString;
import org.sparkproject.spark_core.protobuf.CodedInputStream;
import org.sparkproject.spark_core.protobuf.DescriptorProtos.DescriptorProto;
import org.sparkproject.spark_core.protobuf.DescriptorProtos.FileDescriptorProto;
import org.sparkproject.spark_core.protobuf.Descriptors.Descriptor;
import org.sparkproject.spark_core.protobuf.Descriptors.EnumValueDescriptor;
import org.sparkproject.spark_core.protobuf.Descriptors.FieldDescriptor;
import org.sparkproject.spark_core.protobuf.DynamicMessage;
import org.sparkproject.spark_core.protobuf.Message;

/**
 * Messages of protobuf as rows: the types of Spark's from_protobuf, and the decoder.
 *
 * As there, a field without presence is null if the message lacks it, unsigned numbers keep their bits, and a message
 * without fields has no column. Unlike there each key of a map is in it once, with its last value.
 */
final class ProtobufValues {
    private static final String TIMESTAMP = "google.protobuf.Timestamp";
    private static final String DURATION = "google.protobuf.Duration";
    private static final int KEY = 1;
    private static final int VALUE = 2;
    private static final int SECONDS = 1;
    private static final int NANOS = 2;

    private ProtobufValues() {
    }

    /** Returns the type of the message's rows. Raises ReadException if it has none. */
    static StructType type(Descriptor message) {
        StructType found = struct(message, new HashSet());
        if (found == null) {
            throw new ReadException(ValueFormat.SCHEMA + ": the message " + message.getFullName() + " has no fields");
        }
        return found;
    }

    /** Returns null if there are no fields. `outer`: the names of the messages around this one. */
    private static StructType struct(Descriptor message, Set outer) {
        outer.add(message.getFullName());
        List fields = new ArrayList();
        for (int i = 0; i < message.getFields().size(); i++) {
            FieldDescriptor field = (FieldDescriptor) message.getFields().get(i);
            DataType type = type(field, outer);
            if (type != null) {
                fields.add(DataTypes.createStructField(field.getName(), type, true));
            }
        }
        outer.remove(message.getFullName());
        return fields.isEmpty() ? null : DataTypes.createStructType(fields);
    }

    private static DataType type(FieldDescriptor field, Set outer) {
        if (field.isMapField()) {
            DataType value = elementType(field.getMessageType().findFieldByNumber(VALUE), outer);
            DataType key = elementType(field.getMessageType().findFieldByNumber(KEY), outer);
            return value == null ? null : DataTypes.createMapType(key, value, false);
        }
        DataType type = elementType(field, outer);
        return type == null || !field.isRepeated() ? type : DataTypes.createArrayType(type, false);
    }

    private static DataType elementType(FieldDescriptor field, Set outer) {
        switch (field.getJavaType()) {
            case INT:
                return DataTypes.IntegerType;
            case LONG:
                return DataTypes.LongType;
            case FLOAT:
                return DataTypes.FloatType;
            case DOUBLE:
                return DataTypes.DoubleType;
            case BOOLEAN:
                return DataTypes.BooleanType;
            case STRING:
            case ENUM:
                return DataTypes.StringType;
            case BYTE_STRING:
                return DataTypes.BinaryType;
            default:
                return messageType(field, outer);
        }
    }

    private static DataType messageType(FieldDescriptor field, Set outer) {
        Descriptor message = field.getMessageType();
        if (message.getFullName().equals(TIMESTAMP)) {
            return DataTypes.TimestampType;
        }
        if (message.getFullName().equals(DURATION)) {
            return DataTypes.createDayTimeIntervalType();
        }
        if (message.isPlaceholder()) {
            throw new ReadException(ValueFormat.SCHEMA + ": the file that defines " + message.getFullName()
                + ", the type of " + field.getFullName() + ", is missing: protoc --include_imports adds it");
        }
        if (outer.contains(message.getFullName())) {
            throw new ReadException(ValueFormat.SCHEMA + ": the field " + field.getFullName() + " holds a "
                + message.getFullName() + " within another one, and a column cannot: leave out " + ValueFormat.FORMAT
                + ", and use from_protobuf(value, ...) of the package spark-protobuf with recursive.fields.max.depth");
        }
        return struct(message, outer);
    }

    /** Decodes values that are a message, or a message behind the name of its schema. One thread. */
    static final class ProtobufDecoder implements ValueDecoder {
        private final Descriptor message;
        private final MessageRows rows;
        private final String registry;
        private final Map writers = new HashMap();

        /** `registry`: without it, null, a named schema is taken to be the reader's. */
        ProtobufDecoder(Descriptor message, StructType type, String registry) {
            this.message = message;
            this.rows = new MessageRows(message, type);
            this.registry = registry;
        }

        public Object decode(byte[] bytes) throws Exception {
            CodedInputStream input = CodedInputStream.newInstance(bytes);
            // No message begins with a zero, the magic byte: a tag of zero is invalid.
            if (bytes.length > 0 && bytes[0] == 0) {
                input.skipRawBytes(1);
                Integer id = Integer.valueOf(Integer.reverseBytes(input.readFixed32()));
                String named = named(input, writer(id));
                if (!named.equals(message.getFullName())) {
                    throw new IOException("the value is a " + named);
                }
            }
            DynamicMessage found = DynamicMessage.parseFrom(message, input);
            input.checkLastTagWas(0);
            return rows.row(found);
        }

        /** Returns the file that the value was written with. Raises IOException without one. */
        private FileDescriptorProto writer(Integer id) throws IOException {
            if (registry == null) {
                return message.getFile().toProto();
            }
            if (!writers.containsKey(id)) {
                String text = Texts.ofRegistry(registry, id, true);
                // Schemas of Avro and JSON are JSON.
                boolean isOther = text == null || text.startsWith("{") || text.startsWith("\"");
                writers.put(id, isOther ? null : file(text, id));
            }
            if (writers.get(id) == null) {
                throw new IOException("the registry has no schema of protobuf with the id " + id);
            }
            return (FileDescriptorProto) writers.get(id);
        }

        private FileDescriptorProto file(String text, Integer id) {
            try {
                return ProtobufSchema.parsedFile(text);
            } catch (IOException error) {
                throw new ReadException(ValueFormat.REGISTRY + ": the schema " + id + " in " + registry + " is not in"
                    + " the serialized form of protobuf (" + error.getMessage() + "). Without " + ValueFormat.REGISTRY
                    + " the file of " + message.getFullName() + " says which message a value is");
            }
        }

        /** Reads the place of a message in its file: its number, and those of messages nested in it. */
        private static String named(CodedInputStream input, FileDescriptorProto file) throws IOException {
            int count = input.readSInt32();
            if (count < 0) {
                throw new IOException("a place of " + count + " numbers");
            }
            DescriptorProto found = file.getMessageType(count == 0 ? 0 : input.readSInt32());
            String name = file.getPackage().isEmpty() ? found.getName() : file.getPackage() + "." + found.getName();
            for (int i = 1; i < count; i++) {
                found = found.getNestedType(input.readSInt32());
                name += "." + found.getName();
            }
            return name;
        }
    }

    /** Makes rows of one type from messages of one kind. Immutable. */
    private static final class MessageRows {
        private final FieldDescriptor[] fields;
        // For fields that hold messages with columns of their own.
        private final MessageRows[] inner;

        /** `type` may lack fields that the message has. */
        MessageRows(Descriptor message, StructType type) {
            fields = new FieldDescriptor[type.length()];
            inner = new MessageRows[fields.length];
            for (int i = 0; i < fields.length; i++) {
                StructField wanted = type.fields()[i];
                FieldDescriptor field = message.findFieldByName(wanted.name());
                fields[i] = field;
                DataType element = wanted.dataType();
                if (element instanceof MapType) {
                    element = ((MapType) element).valueType();
                    field = field.getMessageType().findFieldByNumber(VALUE);
                } else if (element instanceof ArrayType) {
                    element = ((ArrayType) element).elementType();
                }
                inner[i] = element instanceof StructType
                    ? new MessageRows(field.getMessageType(), (StructType) element) : null;
            }
        }

        GenericInternalRow row(Message message) {
            Object[] values = new Object[fields.length];
            for (int i = 0; i < values.length; i++) {
                FieldDescriptor field = fields[i];
                if (field.isMapField()) {
                    values[i] = map((List) message.getField(field), field.getMessageType(), inner[i]);
                } else if (field.isRepeated()) {
                    values[i] = array((List) message.getField(field), field, inner[i]);
                } else if (message.hasField(field) || field.hasDefaultValue()) {
                    values[i] = element(message.getField(field), field, inner[i]);
                }
            }
            return new GenericInternalRow(values);
        }

        private static GenericArrayData array(List given, FieldDescriptor field, MessageRows inner) {
            Object[] values = new Object[given.size()];
            for (int i = 0; i < values.length; i++) {
                values[i] = element(given.get(i), field, inner);
            }
            return new GenericArrayData(values);
        }

        private static ArrayBasedMapData map(List entries, Descriptor entry, MessageRows inner) {
            FieldDescriptor key = entry.findFieldByNumber(KEY);
            FieldDescriptor value = entry.findFieldByNumber(VALUE);
            Map found = new LinkedHashMap();
            for (Iterator i = entries.iterator(); i.hasNext();) {
                Message each = (Message) i.next();
                found.put(element(each.getField(key), key, null), element(each.getField(value), value, inner));
            }
            return new ArrayBasedMapData(new GenericArrayData(found.keySet().toArray()),
                new GenericArrayData(found.values().toArray()));
        }

        private static Object element(Object given, FieldDescriptor field, MessageRows inner) {
            switch (field.getJavaType()) {
                case STRING:
                    return UTF8String.fromString((String) given);
                case ENUM:
                    return UTF8String.fromString(((EnumValueDescriptor) given).getName());
                case BYTE_STRING:
                    return ((ByteString) given).toByteArray();
                case MESSAGE:
                    return inner == null ? (Object) micros((Message) given) : inner.row((Message) given);
                default:
                    return given;
            }
        }

        /** Returns the microseconds of a Timestamp or a Duration. */
        private static Long micros(Message given) {
            Descriptor type = given.getDescriptorForType();
            long seconds = ((Long) given.getField(type.findFieldByNumber(SECONDS))).longValue();
            int nanos = ((Integer) given.getField(type.findFieldByNumber(NANOS))).intValue();
            return Long.valueOf(Math.addExact(Math.multiplyExact(seconds, 1_000_000L), nanos / 1000));
        }
    }
}
