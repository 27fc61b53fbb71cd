package org.kreplica.spark;

/** What is wrong with the records of a batch that fits its checksum. */
final class BadRecords extends Exception {
    private static final long serialVersionUID = 1;

    BadRecords(String message) {
        super(message, null, false, false);
    }
}
