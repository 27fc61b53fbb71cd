package org.kreplica.spark;

import java.io.BufferedOutputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.file.CopyOption;
import java.nio.file.FileSystemException;
import java.nio.file.FileSystems;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import java.util.zip.CRC32;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.AbstractFileSystem;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FsConstants;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.hadoop.fs.local.LocalFs;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import org.apache.spark.unsafe.Platform;

/**
 * Writes a stream's checkpoint files to a local directory without starting processes.
 *
 * Without its native library, as in PySpark, Hadoop sets the mode of a file and of its checksums by running chmod,
 * and checks names by running readlink: forty processes for each micro-batch. This class writes with system calls, to
 * the same names, modes and bytes, so that either manager can continue where the other stopped. Everything else goes
 * to the manager that Spark would use, and so does a checkpoint that is not a plain local directory. Any thread.
 */
public final class LocalCheckpoints implements CheckpointFileManager {
    static final String SETTING = "spark.sql.streaming.checkpointFileManagerClass";

    private final CheckpointFileManager other;
    private final FsPermission mode;
    private final boolean isLocal;

    /** Called by Spark, which reads the class name from SETTING. */
    public LocalCheckpoints(Path path, Configuration configuration) throws IOException {
        Configuration without = new Configuration(configuration);
        without.unset(SETTING);
        other = CheckpointFileManager.create(path, without);
        mode = FsPermission.getFileDefault().applyUMask(FsPermission.getUMask(without));
        isLocal = FsConstants.LOCAL_FS_URI.getScheme().equals(path.getFileSystem(without).getUri().getScheme())
            && AbstractFileSystem.get(FsConstants.LOCAL_FS_URI, without).getClass() == LocalFs.class
            && FileSystems.getDefault().supportedFileAttributeViews().contains("posix");
    }

    public CheckpointFileManager.CancellableFSDataOutputStream createAtomic(Path path, boolean overwrites) {
        if (!isLocal) {
            return other.createAtomic(path, overwrites);
        }
        try {
            return AtomicFile.create(new File(path.toUri().getPath()), overwrites, mode);
        } catch (IOException error) {
            // Rethrown unchanged: a Scala method declares no exceptions and raises any.
            Platform.throwException(error);
            return null;
        }
    }

    public FSDataInputStream open(Path path) {
        return other.open(path);
    }

    public FileStatus[] list(Path path, PathFilter filter) {
        return other.list(path, filter);
    }

    public FileStatus[] list(Path path) {
        return other.list(path);
    }

    public void mkdirs(Path path) {
        other.mkdirs(path);
    }

    public boolean exists(Path path) {
        return other.exists(path);
    }

    public void delete(Path path) {
        other.delete(path);
    }

    public boolean isLocal() {
        return other.isLocal();
    }

    public Path createCheckpointDirectory() {
        return other.createCheckpointDirectory();
    }

    public void close() {
        other.close();
    }
}

/**
 * A local file that appears complete when it is closed, with the checksum file that Hadoop expects beside it.
 *
 * The old checksums are deleted before the new contents appear, and the new checksums are written last: a crash in
 * between leaves a readable file. One thread.
 */
final class AtomicFile extends CheckpointFileManager.CancellableFSDataOutputStream {
    /** What file systems without hard links answer: EPERM, EOPNOTSUPP, ENOSYS. */
    private static final List LINKLESS = Arrays.asList(new String[] {
        "Operation not permitted", "Operation not supported", "Function not implemented"});

    private final File file;
    private final boolean overwrites;
    private final FsPermission mode;
    private final File written;
    private final ChecksummedFile content;
    private boolean isOver;

    private AtomicFile(File file, boolean overwrites, FsPermission mode, File written, ChecksummedFile content) {
        super(content);
        this.file = file;
        this.overwrites = overwrites;
        this.mode = mode;
        this.written = written;
        this.content = content;
    }

    static AtomicFile create(File file, boolean overwrites, FsPermission mode) throws IOException {
        // A listing of the checkpoint does not mistake this name for a batch's.
        File written = new File(file.getParentFile(), "." + file.getName() + "." + UUID.randomUUID() + ".tmp");
        return new AtomicFile(file, overwrites, mode, written, new ChecksummedFile(written));
    }

    /** Closes the file. Raises FileAlreadyExistsException if it exists and must not be overwritten. */
    public void close() throws IOException {
        if (isOver) {
            return;
        }
        try {
            super.close();
            publish();
        } finally {
            cancel();
        }
    }

    private void publish() throws IOException {
        content.writeChecksums(checksums(written));
        Set permissions = PosixFilePermissions.fromString(mode.toString());
        Files.setPosixFilePermissions(written.toPath(), permissions);
        Files.setPosixFilePermissions(checksums(written).toPath(), permissions);
        if (overwrites) {
            Files.deleteIfExists(checksums(file).toPath());
            rename(written, file);
        } else {
            link();
        }
        rename(checksums(written), checksums(file));
    }

    /** Names the file by a hard link, which fails if the name exists; a rename would replace that file. */
    private void link() throws IOException {
        try {
            Files.createLink(file.toPath(), written.toPath());
        } catch (FileSystemException error) {
            if (error instanceof java.nio.file.FileAlreadyExistsException || file.exists()) {
                throw new FileAlreadyExistsException(file + ": already exists");
            }
            if (!LINKLESS.contains(error.getReason())) {
                throw error;
            }
            // As in Hadoop, the later of two concurrent writers wins.
            rename(written, file);
        }
    }

    /** Deletes the written file, unless it was closed. */
    public void cancel() {
        if (isOver) {
            return;
        }
        isOver = true;
        try {
            content.close();
            Files.deleteIfExists(written.toPath());
            Files.deleteIfExists(checksums(written).toPath());
        } catch (IOException error) {
            KreplicaProvider.LOGGER.warn("{}: could not be deleted: {}", written, error.toString());
        }
    }

    private static void rename(File from, File to) throws IOException {
        Files.move(from.toPath(), to.toPath(), new CopyOption[] {StandardCopyOption.ATOMIC_MOVE});
    }

    private static File checksums(File file) {
        return new File(file.getParentFile(), "." + file.getName() + ".crc");
    }
}

/**
 * A local file, and the CRC-32 of each CHUNK of its bytes, which Hadoop's local file system verifies.
 *
 * The checksum file contains "crc\0", the length of a chunk, and the checksums, big-endian. One thread.
 */
final class ChecksummedFile extends OutputStream {
    private static final int MAGIC = 0x6372_6300;
    private static final int CHUNK = 512;

    private final OutputStream file;
    private final ByteArrayOutputStream checksums = new ByteArrayOutputStream();
    private final DataOutputStream noted = new DataOutputStream(checksums);
    private final CRC32 checksum = new CRC32();
    private int inChunk;

    ChecksummedFile(File path) throws IOException {
        file = new BufferedOutputStream(new FileOutputStream(path));
        noted.writeInt(MAGIC);
        noted.writeInt(CHUNK);
    }

    public void write(int one) throws IOException {
        write(new byte[] {(byte) one}, 0, 1);
    }

    public void write(byte[] bytes, int offset, int length) throws IOException {
        file.write(bytes, offset, length);
        int at = offset;
        while (at < offset + length) {
            int some = Math.min(offset + length - at, CHUNK - inChunk);
            checksum.update(bytes, at, some);
            at += some;
            inChunk += some;
            if (inChunk == CHUNK) {
                note();
            }
        }
    }

    private void note() throws IOException {
        noted.writeInt((int) checksum.getValue());
        checksum.reset();
        inChunk = 0;
    }

    public void flush() throws IOException {
        file.flush();
    }

    public void close() throws IOException {
        file.close();
    }

    /** Writes the checksums of everything written so far; nothing may be written afterwards. */
    void writeChecksums(File path) throws IOException {
        if (inChunk > 0) {
            note();
        }
        OutputStream out = new FileOutputStream(path);
        try {
            checksums.writeTo(out);
        } finally {
            out.close();
        }
    }
}
