package org.kreplica.spark;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.io.UncheckedIOException;
import java.nio.channels.ClosedByInterruptException;
import java.nio.file.AccessDeniedException;
import java.nio.file.FileSystemException;
import java.nio.file.NoSuchFileException;
import java.nio.file.NotDirectoryException;
import java.util.Collections;
import java.util.Map;
import org.apache.spark.SparkThrowable;

/**
 * An error of a read, worded for the user.
 *
 * PySpark shows only the message of an IllegalArgumentException, and a Java stack trace for other errors. An error of
 * a task reaches the user unchanged if it is a SparkThrowable with a condition.
 */
class ReadException extends IllegalArgumentException implements SparkThrowable {
    private static final long serialVersionUID = 1;
    private static final String CONDITION = "KREPLICA_READ";
    // The state of errors in Python data sources.
    private static final String SQL_STATE = "38000";

    ReadException(String message) {
        super(message);
    }

    ReadException(String message, Throwable cause) {
        super(message, cause);
    }

    /** Wraps a failed system call, with the file's name and the reason. An interruption is passed on unchanged. */
    static RuntimeException of(IOException error) {
        if (error instanceof ClosedByInterruptException || error instanceof InterruptedIOException) {
            // Spark quietly ends a query that is stopped this way.
            return new UncheckedIOException(error);
        }
        if (!(error instanceof FileSystemException)) {
            return new ReadException(String.valueOf(error.getMessage()), error);
        }
        FileSystemException refused = (FileSystemException) error;
        String reason = refused.getReason();
        if (error instanceof AccessDeniedException) {
            reason = "permission denied";
        } else if (error instanceof NotDirectoryException) {
            reason = "not a directory";
        } else if (reason == null) {
            reason = error instanceof NoSuchFileException ? "no such file or directory" : error.toString();
        }
        return new ReadException(refused.getFile() + ": " + reason, error);
    }

    public String getCondition() {
        return CONDITION;
    }

    public String getSqlState() {
        return SQL_STATE;
    }

    public Map getMessageParameters() {
        return Collections.emptyMap();
    }

    /** Raises ReadException because requested records do not exist, or logs a warning if `fail` is false. */
    static void lost(boolean fail, String text) {
        if (fail) {
            throw new ReadException(text + "; with failOnDataLoss=false the read continues with what exists");
        }
        KreplicaProvider.LOGGER.warn("{}; the read continues with what exists", text);
    }

    /** Only the Python reader can read this; the message says why. */
    static final class NotForThisReader extends ReadException {
        private static final long serialVersionUID = 1;

        NotForThisReader(String message) {
            super(message);
        }
    }
}
