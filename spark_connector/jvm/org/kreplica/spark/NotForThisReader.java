package org.kreplica.spark;

/** Only the Python reader can read this; the message says why. */
final class NotForThisReader extends ReadException {
    private static final long serialVersionUID = 1;

    NotForThisReader(String message) {
        super(message);
    }
}
