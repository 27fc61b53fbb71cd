package org.kreplica.spark;

import java.io.File;
import java.io.IOException;
import java.nio.file.FileSystems;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.AbstractFileSystem;
import org.apache.hadoop.fs.FSDataInputStream;
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
