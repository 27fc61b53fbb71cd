package org.kreplica.spark;

import java.io.File;
import java.io.IOException;
import java.nio.file.CopyOption;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.Set;
import java.util.UUID;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;

/**
 * A local file that appears complete when it is closed, with the checksum file that Hadoop expects beside it.
 *
 * The old checksums are deleted before the new contents appear, and the new checksums are written last: a crash in
 * between leaves a readable file. One thread.
 */
final class AtomicFile extends CheckpointFileManager.CancellableFSDataOutputStream {
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
            // The file system has no hard links. As in Hadoop, the later of two concurrent writers wins.
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
            Logs.logger.warn("{}: could not be deleted: {}", written, error.toString());
        }
    }

    private static void rename(File from, File to) throws IOException {
        Files.move(from.toPath(), to.toPath(), new CopyOption[] {StandardCopyOption.ATOMIC_MOVE});
    }

    private static File checksums(File file) {
        return new File(file.getParentFile(), "." + file.getName() + ".crc");
    }
}
