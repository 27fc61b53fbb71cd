package org.kreplica.spark;

import java.io.Serializable;

/** What a task needs besides its range. Immutable. */
final class ReadSettings implements Serializable {
    private static final long serialVersionUID = 1;

    final boolean committed;
    final boolean skipDamaged;
    final boolean failOnDataLoss;

    ReadSettings(ReadOptions options) {
        committed = options.committed;
        skipDamaged = options.skipDamaged;
        failOnDataLoss = options.failOnDataLoss;
    }
}
