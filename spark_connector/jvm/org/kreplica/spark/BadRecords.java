package org.kreplica.spark;

/** The records of a batch are malformed although its checksum is right; the message says how. */
final class BadRecords extends Exception {
    private static final long serialVersionUID = 1;

    BadRecords(String message) {
        super(message, null, false, false);
    }
}
