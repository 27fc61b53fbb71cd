package org.kreplica.spark;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.nio.file.OpenOption;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.zip.CRC32C;
import org.kreplica.spark.ReadException.NotForThisReader;

/**
 * The state of a log of kreplica's, as its writer has published it in `kreplica.state.deleted`.
 *
 * docs/FORMATS.md has the layout: 256 bytes, little-endian, two slots under a sequence number.
 */
final class LogStanding {
    static final String FILE = "kreplica.state.deleted";
    private static final int ATTEMPTS = 20;
    private static final int BYTES = 224;
    private static final long MAGIC = 0x0100_0047_4f4c_524bL;
    private static final int SEQUENCE = 8;
    private static final int SLOT = 64;
    private static final int SLOT_BYTES = 80;

    /** Grows with each change. */
    final long sequence;
    final long logStartOffset;
    final long highWatermark;
    final long lastStableOffset;
    final long logEndOffset;
    final long activeBaseOffset;
    final long validBytes;
    final boolean isClean;
    final boolean hasGaps;
    final long cuts;
    final int segments;
    final String bootId;

    private LogStanding(ByteBuffer data, int slot) {
        sequence = data.getLong(SEQUENCE);
        logStartOffset = data.getLong(slot);
        highWatermark = data.getLong(slot + 8);
        lastStableOffset = data.getLong(slot + 16);
        logEndOffset = data.getLong(slot + 24);
        activeBaseOffset = data.getLong(slot + 32);
        validBytes = data.getLong(slot + 40);
        long flags = data.getLong(slot + 64);
        isClean = (flags & 1) != 0;
        hasGaps = (flags & 2) != 0;
        cuts = flags >>> 8;
        segments = data.getInt(52);
        byte[] id = new byte[36];
        data.get(16, id);
        bootId = new String(id, StandardCharsets.ISO_8859_1).trim();
    }

    /** Returns the published state of the log in this directory, null if nothing is published. */
    static LogStanding read(String directory) throws IOException {
        for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
            byte[] bytes;
            try {
                bytes = Files.readAllBytes(Paths.get(directory, new String[] {FILE}));
            } catch (NoSuchFileException error) {
                return null;
            }
            LogStanding found = parse(bytes);
            if (found != null) {
                return found;
            }
            // The slot is damaged, or was written while we read it.
            Thread.yield();
        }
        throw new NotForThisReader(directory + ": " + FILE + " is damaged");
    }

    private static LogStanding parse(byte[] bytes) {
        ByteBuffer data = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN);
        if (bytes.length < BYTES || data.getLong(0) != MAGIC) {
            return null;
        }
        int slot = SLOT + (int) (data.getLong(SEQUENCE) & 1) * SLOT_BYTES;
        CRC32C checksum = new CRC32C();
        checksum.update(bytes, slot, 72);
        return checksum.getValue() == (data.getLong(slot + 72) & 0xffffffffL) ? new LogStanding(data, slot) : null;
    }

    /** Returns whether the writer has done nothing but append, and published more, since an earlier state. */
    boolean continues(LogStanding before) {
        return before != null && logStartOffset == before.logStartOffset && activeBaseOffset == before.activeBaseOffset
            && isClean == before.isClean && hasGaps == before.hasGaps && cuts == before.cuts
            && segments == before.segments && bootId.equals(before.bootId) && logEndOffset >= before.logEndOffset;
    }

    /** Returns whether the state is still true: the log was closed properly, or written since the machine booted. */
    boolean isLive() throws IOException {
        if (isClean) {
            return true;
        }
        try {
            byte[] now = Files.readAllBytes(Paths.get("/proc/sys/kernel/random/boot_id", new String[0]));
            return bootId.equals(new String(now, StandardCharsets.ISO_8859_1).trim());
        } catch (NoSuchFileException error) {
            return false;
        }
    }

    /** The published state of a log, mapped: a look at its sequence takes no system call. One thread. */
    static final class Watch {
        private final Object file;
        private final ByteBuffer data;

        private Watch(Path path, Object file) throws IOException {
            this.file = file;
            FileChannel channel = FileChannel.open(path, new OpenOption[] {StandardOpenOption.READ});
            try {
                data = channel.map(FileChannel.MapMode.READ_ONLY, 0, BYTES).order(ByteOrder.LITTLE_ENDIAN);
            } finally {
                channel.close();
            }
        }

        /** Returns a watch of the file in this directory, which is `before` unless the file was replaced. */
        static Watch of(String directory, Watch before) throws IOException {
            Path path = Paths.get(directory, new String[] {FILE});
            Object file = Files.readAttributes(path, BasicFileAttributes.class, new LinkOption[0]).fileKey();
            return before != null && before.file.equals(file) ? before : new Watch(path, file);
        }

        long sequence() {
            return data.getLong(SEQUENCE);
        }
    }
}
