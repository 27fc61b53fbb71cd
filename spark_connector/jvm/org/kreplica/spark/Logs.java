package org.kreplica.spark;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The logger of this package. */
final class Logs {
    static final Logger logger = LoggerFactory.getLogger("org.kreplica.spark");

    private Logs() {
    }
}
