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
 * What a read cannot do, in the words that a user is to see.
 *
 * PySpark shows the message of an IllegalArgumentException by itself, where of others it shows the stack of the JVM,
 * and what is SparkThrowable and has a condition comes from a task to the user as it is.
 */
class ReadException extends IllegalArgumentException implements SparkThrowable {
    private static final long serialVersionUID = 1;
    private static final String CONDITION = "KREPLICA_READ";
    // As what goes wrong in a Python data source has.
    private static final String SQL_STATE = "38000";

    ReadException(String message) {
        super(message);
    }

    ReadException(String message, Throwable cause) {
        super(message, cause);
    }

    /** What the operating system refused, with the file's name and the reason. An interruption stays what it is. */
    static RuntimeException of(IOException error) {
        if (error instanceof ClosedByInterruptException || error instanceof InterruptedIOException) {
            // Spark ends a query quietly that is stopped so.
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

    /** Records that were asked for are not there any more, or were never; only told where the read may go on. */
    static void lost(boolean fail, String text) {
        if (fail) {
            throw new ReadException(text + "; with failOnDataLoss=false the read goes on with what there is");
        }
        Logs.logger.warn("{}; the read goes on with what there is", text);
    }
}
