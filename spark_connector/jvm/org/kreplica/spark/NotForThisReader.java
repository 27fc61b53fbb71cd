package org.kreplica.spark;

/** What only the Python reader does; the message says why. */
final class NotForThisReader extends ReadException {
    private static final long serialVersionUID = 1;

    NotForThisReader(String message) {
        super(message);
    }
}
