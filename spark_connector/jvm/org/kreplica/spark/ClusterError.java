package org.kreplica.spark;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;

/** An error of a cluster: an answer with an error code, or no answer. */
final class ClusterError extends IOException {
    static final int OFFSET_OUT_OF_RANGE = 1;
    static final int CORRUPT_MESSAGE = 2;
    static final int UNKNOWN_TOPIC_OR_PARTITION = 3;
    static final int LEADER_NOT_AVAILABLE = 5;
    static final int REQUEST_TIMED_OUT = 7;
    static final int NETWORK = 13;
    static final int OUT_OF_ORDER_SEQUENCE_NUMBER = 45;
    static final int DUPLICATE_SEQUENCE_NUMBER = 46;
    static final int INVALID_PRODUCER_EPOCH = 47;
    static final int INVALID_TXN_STATE = 48;
    static final int INVALID_PRODUCER_ID_MAPPING = 49;
    static final int CONCURRENT_TRANSACTIONS = 51;
    static final int UNKNOWN_PRODUCER_ID = 59;
    static final int PRODUCER_FENCED = 90;
    static final int TRANSACTION_ABORTABLE = 120;
    private static final long serialVersionUID = 1;

    final int code;

    /** `text`: what it is about; the code says what happened. */
    ClusterError(int code, String text) {
        super(code == NETWORK || code == UNKNOWN_TOPIC_OR_PARTITION || code == LEADER_NOT_AVAILABLE
            ? text : text + ": " + Codes.text(code));
        this.code = code;
    }

    /** Raises the error of an answer's code, unless that is 0. */
    static void require(int code, String text) throws ClusterError {
        if (code != 0) {
            throw new ClusterError(code, text);
        }
    }

    /** Returns an error of `ClusterClient.retrying`'s call; other exceptions are rethrown. */
    static ClusterError of(Exception error) throws IOException {
        if (error instanceof ClusterError) {
            return (ClusterError) error;
        }
        if (error instanceof RuntimeException) {
            throw (RuntimeException) error;
        }
        throw error instanceof IOException ? (IOException) error : new IOException(error);
    }

    /** Whether the same request may succeed later. */
    boolean isRetriable() {
        return code != CORRUPT_MESSAGE && Codes.isRetriable(code);
    }

    /** The table of Kafka's error codes, which the jar gets from kreplica's. */
    private static final class Codes {
        private static final String FILE = "errors.tsv";
        private static final Map ROWS = read();

        private Codes() {
        }

        private static Map read() {
            Map found = new HashMap();
            InputStream file = Codes.class.getResourceAsStream(FILE);
            try {
                BufferedReader lines = new BufferedReader(new InputStreamReader(file, StandardCharsets.UTF_8));
                String line = lines.readLine();
                while (line != null) {
                    // The columns: code, name, whether to retry, what happened.
                    String[] row = line.split("\t", -1);
                    found.put(Integer.valueOf(row[0]), row);
                    line = lines.readLine();
                }
                lines.close();
            } catch (IOException error) {
                throw new java.io.UncheckedIOException(error);
            }
            return found;
        }

        static String text(int code) {
            String[] row = (String[]) ROWS.get(Integer.valueOf(code));
            return row == null ? "error " + code : row[1] + ": " + row[3];
        }

        static boolean isRetriable(int code) {
            String[] row = (String[]) ROWS.get(Integer.valueOf(code));
            return row != null && row[2].equals("true");
        }
    }
}
