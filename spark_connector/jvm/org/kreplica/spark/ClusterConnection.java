package org.kreplica.spark;

import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.UnknownHostException;
import java.nio.ByteBuffer;
import java.util.ArrayDeque;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import org.kreplica.spark.ClusterClient.Address;
import org.kreplica.spark.Wire.AnswerReader;
import org.kreplica.spark.Wire.RequestWriter;

/**
 * A connection to a broker. Requests may be sent before earlier ones are answered; answers come in their order.
 *
 * Unused connections are kept for the next task of this JVM, for a while. One thread uses a connection.
 */
final class ClusterConnection {
    private static final int CONNECT_MS = 10_000;
    private static final int MOST_ANSWER_BYTES = 256 << 20;
    private static final long KEPT_NS = 60_000_000_000L;
    private static final int MOST_KEPT = 8;
    private static final String CLIENT_ID = "kreplica-spark";
    /** An ArrayDeque of connections by Address. */
    private static final Map KEPT = new HashMap();

    final Address address;
    private final Socket socket;
    private final InputStream input;
    private final OutputStream output;
    /** The correlation ids and versions of requests without answer. */
    private final ArrayDeque pending = new ArrayDeque();
    private int lastCorrelation;
    private long releasedNs;

    private ClusterConnection(Address to, Deadline deadline) throws IOException {
        address = to;
        socket = new Socket();
        boolean isMade = false;
        try {
            socket.setTcpNoDelay(true);
            socket.connect(new InetSocketAddress(to.host, to.port), (int) Math.max(1, deadline.leftMs(CONNECT_MS)));
            input = socket.getInputStream();
            output = socket.getOutputStream();
            isMade = true;
        } finally {
            if (!isMade) {
                socket.close();
            }
        }
    }

    /** Returns a connection that is kept, or a new one. Raises IOException, which names the address. */
    static ClusterConnection open(Address to, Deadline deadline) throws IOException {
        ClusterConnection kept = kept(to);
        if (kept != null) {
            return kept;
        }
        try {
            return new ClusterConnection(to, deadline);
        } catch (UnknownHostException error) {
            throw new IOException(to + ": the host is unknown", error);
        } catch (IOException error) {
            throw new IOException(to + ": " + error.getMessage(), error);
        }
    }

    private static ClusterConnection kept(Address to) {
        synchronized (KEPT) {
            ArrayDeque mine = (ArrayDeque) KEPT.get(to);
            while (mine != null && !mine.isEmpty()) {
                ClusterConnection found = (ClusterConnection) mine.removeLast();
                if (System.nanoTime() - found.releasedNs < KEPT_NS) {
                    return found;
                }
                found.close();
            }
            return null;
        }
    }

    /** Keeps the connection for the next user, if all its requests are answered; else closes it. */
    void release() {
        synchronized (KEPT) {
            for (Iterator i = KEPT.values().iterator(); i.hasNext();) {
                dropOld((ArrayDeque) i.next());
            }
            ArrayDeque mine = (ArrayDeque) KEPT.get(address);
            if (mine == null) {
                mine = new ArrayDeque();
                KEPT.put(address, mine);
            }
            if (pending.isEmpty() && mine.size() < MOST_KEPT) {
                releasedNs = System.nanoTime();
                mine.addLast(this);
                return;
            }
        }
        close();
    }

    private static void dropOld(ArrayDeque kept) {
        while (!kept.isEmpty() && System.nanoTime() - ((ClusterConnection) kept.getFirst()).releasedNs >= KEPT_NS) {
            ((ClusterConnection) kept.removeFirst()).close();
        }
    }

    void close() {
        try {
            socket.close();
        } catch (IOException error) {
            KreplicaProvider.LOGGER.debug("{}: closing failed", address, error);
        }
    }

    /** Sends a request; `body` has its fields. */
    void send(int apiKey, int version, RequestWriter body) throws IOException {
        lastCorrelation++;
        RequestWriter header = new RequestWriter();
        header.int16(apiKey).int16(version).int32(lastCorrelation).shortText(CLIENT_ID).end();
        ByteBuffer frame = ByteBuffer.allocate(4 + header.size() + body.size());
        frame.putInt(header.size() + body.size()).put((ByteBuffer) header.written()).put((ByteBuffer) body.written());
        output.write(frame.array());
        output.flush();
        // Only the answer to ApiVersions has the old header, so that every client can read it.
        boolean hasTags = apiKey != ClusterClient.API_VERSIONS;
        pending.add(new int[] {lastCorrelation, hasTags ? 1 : 0});
    }

    /**
     * Returns the answer to the earliest request without one; a large one is read into `into`, if it fits. Raises
     * IOException if the broker sends nothing for so long; then the connection can only be closed.
     */
    AnswerReader receive(Frame into, long timeoutMs) throws IOException {
        socket.setSoTimeout((int) Math.max(1, timeoutMs));
        int[] request = (int[]) pending.element();
        byte[] head = new byte[4];
        readFully(head, 4);
        int length = ByteBuffer.wrap(head).getInt();
        if (length < 4 || length > MOST_ANSWER_BYTES) {
            throw new IOException(address + ": an answer of " + length + " bytes; is this a broker's address?");
        }
        byte[] bytes = into.room(length);
        readFully(bytes, length);
        AnswerReader answer = new AnswerReader(ByteBuffer.wrap(bytes, 0, length));
        int correlation = answer.int32();
        if (correlation != request[0]) {
            throw new IOException(address + ": answer " + correlation + " where " + request[0] + " is expected");
        }
        if (request[1] == 1) {
            answer.end();
        }
        pending.remove();
        return answer;
    }

    private void readFully(byte[] into, int count) throws IOException {
        int done = 0;
        while (done < count) {
            int read = input.read(into, done, count - done);
            if (read < 0) {
                throw new EOFException(address + ": the broker closed the connection");
            }
            done += read;
        }
    }

    /** Memory for answers, reused. One thread. */
    static final class Frame {
        private byte[] bytes = new byte[0];

        byte[] room(int length) {
            if (bytes.length < length) {
                bytes = new byte[length];
            }
            return bytes;
        }
    }
}
