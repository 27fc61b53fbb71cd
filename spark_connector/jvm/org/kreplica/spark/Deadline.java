package org.kreplica.spark;

import java.io.IOException;
import java.io.InterruptedIOException;
import org.apache.spark.TaskContext;

/** The time at which a wait has to end. Immutable. */
final class Deadline {
    static final Deadline NEVER = new Deadline(0);

    /** Of System.nanoTime(). */
    private final long atNs;

    private Deadline(long atNs) {
        this.atNs = atNs;
    }

    static Deadline in(long milliseconds) {
        return new Deadline(System.nanoTime() + milliseconds * 1_000_000);
    }

    /** Returns the time left, at most this much; 0 if none is left. */
    long leftMs(long most) {
        return this == NEVER ? most : Math.max(0, Math.min(most, (atNs - System.nanoTime()) / 1_000_000));
    }

    boolean hasPassed() {
        return this != NEVER && System.nanoTime() - atNs >= 0;
    }

    /** Sleeps, but not longer than to the deadline. Raises InterruptedIOException if the task is cancelled. */
    void pause(long milliseconds) throws IOException {
        requireTask();
        try {
            Thread.sleep(leftMs(milliseconds));
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new InterruptedIOException("interrupted while waiting for records or the cluster");
        }
    }

    /** Raises InterruptedIOException if Spark has cancelled the task of this thread. */
    static void requireTask() throws IOException {
        TaskContext task = TaskContext.get();
        if (Thread.currentThread().isInterrupted() || task != null && task.isInterrupted()) {
            throw new InterruptedIOException("the task was cancelled");
        }
    }
}
