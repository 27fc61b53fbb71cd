package org.kreplica.spark;

import java.io.IOException;
import java.io.Serializable;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.kreplica.spark.ValueFormat.Texts;
import org.sparkproject.spark_core.protobuf.AnyProto;
import org.sparkproject.spark_core.protobuf.ApiProto;
import org.sparkproject.spark_core.protobuf.DescriptorProtos;
import org.sparkproject.spark_core.protobuf.DescriptorProtos.FileDescriptorProto;
import org.sparkproject.spark_core.protobuf.DescriptorProtos.FileDescriptorSet;
import org.sparkproject.spark_core.protobuf.DescriptorProtos.FileOptions;
import org.sparkproject.spark_core.protobuf.Descriptors.Descriptor;
import org.sparkproject.spark_core.protobuf.Descriptors.FileDescriptor;
import org.sparkproject.spark_core.protobuf.DurationProto;
import org.sparkproject.spark_core.protobuf.EmptyProto;
import org.sparkproject.spark_core.protobuf.FieldMaskProto;
import org.sparkproject.spark_core.protobuf.SourceContextProto;
import org.sparkproject.spark_core.protobuf.StructProto;
import org.sparkproject.spark_core.protobuf.TimestampProto;
import org.sparkproject.spark_core.protobuf.TypeProto;
import org.sparkproject.spark_core.protobuf.WrappersProto;

/**
 * The message that protobuf values are, with the files that define it.
 *
 * spark-core has protobuf's own library, under the name org.sparkproject.spark_core, in each version of Spark that
 * kreplica allows: it is smaller and more exact than a reader of our own. Immutable.
 */
final class ProtobufSchema implements Serializable {
    private static final long serialVersionUID = 1;
    private static final String SERIALIZED = "format=serialized";
    private static final String REMEDY = "protoc --include_imports --descriptor_set_out=orders.desc orders.proto";
    // The first byte of each FileDescriptorSet: the tag of its first file.
    private static final byte FIRST_TAG = 0x0a;
    private static final int SHOWN_NAMES = 20;
    private static final Map WELL_KNOWN = new HashMap();

    static {
        FileDescriptor[] known = {
            AnyProto.getDescriptor(), ApiProto.getDescriptor(), DescriptorProtos.getDescriptor(),
            DurationProto.getDescriptor(), EmptyProto.getDescriptor(), FieldMaskProto.getDescriptor(),
            SourceContextProto.getDescriptor(), StructProto.getDescriptor(), TimestampProto.getDescriptor(),
            TypeProto.getDescriptor(), WrappersProto.getDescriptor(),
        };
        for (int i = 0; i < known.length; i++) {
            WELL_KNOWN.put(known[i].getName(), known[i]);
        }
    }

    // A FileDescriptorSet of the message's file and of those that it needs.
    private final byte[] files;
    private final String message;

    private ProtobufSchema(byte[] files, String message) {
        this.files = files;
        this.message = message;
    }

    /**
     * Reads the schema of an option: a FileDescriptorSet, in base64 or in a file, or the answer of a schema registry.
     *
     * `message` may be null if the last file has one message; `registry` has the files that an answer refers to. Raises
     * ReadException.
     */
    static ProtobufSchema of(String given, String message, String registry) {
        byte[] found = Texts.bytes(isOfRegistry(given) ? serialized(given) : given.trim());
        List files = new ArrayList();
        if (found.length > 0 && found[0] == '{') {
            String from = isOfRegistry(given) ? given.replaceFirst("/(schemas|subjects)/.*", "") : registry;
            addAnswered(files, found, null, from, new HashSet());
        } else {
            files = parsedSet(found);
        }
        Descriptor chosen = chosen(built(files), message);
        Map needed = new LinkedHashMap();
        addNeeded(needed, chosen.getFile());
        byte[] set = FileDescriptorSet.newBuilder().addAllFile(needed.values()).build().toByteArray();
        return new ProtobufSchema(set, chosen.getFullName());
    }

    Descriptor descriptor() {
        return chosen(built(parsedSet(files)), message);
    }

    /** Parses the file that a registry answers with, in base64. Raises IOException for other texts. */
    static FileDescriptorProto parsedFile(String text) throws IOException {
        return FileDescriptorProto.parseFrom(fromBase64(text));
    }

    private static byte[] fromBase64(String text) throws IOException {
        try {
            return Base64.getDecoder().decode(text.replaceAll("\\s", ""));
        } catch (IllegalArgumentException error) {
            throw new IOException("text that is not base64");
        }
    }

    /** Adds what a registry asks for answers in the form of protobuf's own descriptors. */
    static String serialized(String url) {
        return url.contains(SERIALIZED) ? url : url + (url.indexOf('?') < 0 ? "?" : "&") + SERIALIZED;
    }

    private static boolean isOfRegistry(String given) {
        return Texts.isUrl(given) && (given.contains("/schemas/ids/") || given.contains("/subjects/"));
    }

    private static List parsedSet(byte[] given) {
        String why = "no files";
        try {
            boolean isBinary = given.length > 0 && given[0] == FIRST_TAG;
            byte[] bytes = isBinary ? given : fromBase64(new String(given, StandardCharsets.UTF_8));
            List files = FileDescriptorSet.parseFrom(bytes).getFileList();
            if (!files.isEmpty()) {
                return files;
            }
        } catch (IOException error) {
            why = error.getMessage();
        }
        throw new ReadException(ValueFormat.SCHEMA + ": not a FileDescriptorSet of protobuf (" + why + "): name the"
            + " file that this writes, by a whole path or a URL, or give its bytes in base64: " + REMEDY);
    }

    /** Adds the file of a registry's answer, after those that it refers to. `name`: by which it is imported. */
    private static void addAnswered(List files, byte[] answer, String name, String registry, Set seen) {
        String text = new String(answer, StandardCharsets.UTF_8);
        String schema = Json.member(ValueFormat.SCHEMA, text, "schema");
        FileDescriptorProto file;
        try {
            file = parsedFile(schema == null ? "" : schema);
        } catch (IOException error) {
            throw new ReadException(ValueFormat.SCHEMA + ": the answer of the registry has no schema of protobuf in"
                + " its serialized form (" + error.getMessage() + "): ask with ?" + SERIALIZED + ", or give the file"
                + " that this writes: " + REMEDY);
        }
        String[] members = {"name", "subject", "version"};
        for (Iterator i = Json.rows(ValueFormat.SCHEMA, text, "references", members).iterator(); i.hasNext();) {
            String[] reference = (String[]) i.next();
            if (!seen.add(reference[0])) {
                continue;
            }
            if (!Texts.isUrl(registry)) {
                throw new ReadException(ValueFormat.SCHEMA + ": imports " + reference[0] + ", which a registry has: set"
                    + " " + ValueFormat.REGISTRY + " to its URL, or give the file that this writes: " + REMEDY);
            }
            String subject = URLEncoder.encode(reference[1], StandardCharsets.UTF_8).replace("+", "%20");
            String url = registry.replaceFirst("/+$", "") + "/subjects/" + subject + "/versions/" + reference[2];
            addAnswered(files, Texts.bytes(serialized(url)), reference[0], registry, seen);
        }
        files.add(name == null ? file : file.toBuilder().setName(name).build());
    }

    /** Returns the FileDescriptors of FileDescriptorProtos. Raises ReadException if they do not fit together. */
    private static List built(List protos) {
        Map byName = new LinkedHashMap();
        for (int i = 0; i < protos.size(); i++) {
            FileDescriptorProto each = (FileDescriptorProto) protos.get(i);
            byName.put(each.getName(), each);
        }
        Map found = new HashMap();
        List built = new ArrayList();
        try {
            for (Iterator i = byName.keySet().iterator(); i.hasNext();) {
                built.add(built((String) i.next(), byName, found));
            }
        } catch (ReadException error) {
            throw error;
        } catch (Exception error) {
            throw new ReadException(ValueFormat.SCHEMA + ": not a valid schema of protobuf: " + error.getMessage());
        }
        return built;
    }

    private static FileDescriptor built(String name, Map protos, Map found) throws Exception {
        FileDescriptorProto proto = (FileDescriptorProto) protos.get(name);
        if (proto == null) {
            return (FileDescriptor) WELL_KNOWN.get(name);
        }
        if (!found.containsKey(name)) {
            found.put(name, null);
            List imports = new ArrayList();
            for (int i = 0; i < proto.getDependencyCount(); i++) {
                FileDescriptor each = built(proto.getDependency(i), protos, found);
                if (each != null) {
                    imports.add(each);
                }
            }
            FileDescriptor[] known = (FileDescriptor[]) imports.toArray(new FileDescriptor[0]);
            // Files that are missing may define options only; a missing type is reported where a field has it.
            found.put(name, FileDescriptor.buildFrom(checkingTexts(proto), known, true));
        } else if (found.get(name) == null) {
            throw new ReadException(ValueFormat.SCHEMA + ": " + name + " imports itself");
        }
        return (FileDescriptor) found.get(name);
    }

    /** Makes invalid UTF-8 an error in proto2, too; without this it is replaced there, and lost. */
    private static FileDescriptorProto checkingTexts(FileDescriptorProto proto) {
        boolean isProto2 = proto.getSyntax().isEmpty() || proto.getSyntax().equals("proto2");
        if (!isProto2) {
            return proto;
        }
        FileOptions options = proto.getOptions().toBuilder().setJavaStringCheckUtf8(true).build();
        return proto.toBuilder().setOptions(options).build();
    }

    private static Descriptor chosen(List files, String message) {
        if (message == null) {
            FileDescriptor last = (FileDescriptor) files.get(files.size() - 1);
            if (last.getMessageTypes().size() == 1) {
                return (Descriptor) last.getMessageTypes().get(0);
            }
        }
        Map all = new TreeMap();
        for (int i = 0; i < files.size(); i++) {
            addMessages(all, ((FileDescriptor) files.get(i)).getMessageTypes());
        }
        Descriptor found = message == null ? null : (Descriptor) all.get(message);
        if (found == null) {
            List names = new ArrayList(all.keySet());
            String shown = names.size() <= SHOWN_NAMES ? String.join(", ", names)
                : String.join(", ", names.subList(0, SHOWN_NAMES)) + " and " + (names.size() - SHOWN_NAMES) + " others";
            throw new ReadException(ValueFormat.MESSAGE + ": "
                + (message == null ? "name the message that values are" : "the schema has no message '" + message + "'")
                + ", one of " + shown);
        }
        return found;
    }

    private static void addMessages(Map all, List messages) {
        for (int i = 0; i < messages.size(); i++) {
            Descriptor each = (Descriptor) messages.get(i);
            if (!each.getOptions().getMapEntry()) {
                all.put(each.getFullName(), each);
                addMessages(all, each.getNestedTypes());
            }
        }
    }

    private static void addNeeded(Map needed, FileDescriptor file) {
        if (!needed.containsKey(file.getName())) {
            for (int i = 0; i < file.getDependencies().size(); i++) {
                addNeeded(needed, (FileDescriptor) file.getDependencies().get(i));
            }
            needed.put(file.getName(), file.toProto());
        }
    }
}
