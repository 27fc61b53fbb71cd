package org.kreplica.spark;

/** The damaged offsets [first, next) and their place in the file; `next` -1 if nothing valid follows. Immutable. */
final class LostRange {
    final long first;
    final long next;
    private final String text;

    LostRange(long first, long next, String path, int position, int endPosition, String reason) {
        this.first = first;
        this.next = next;
        text = "offsets " + first + " to " + (next < 0 ? "the end" : String.valueOf(next - 1)) + " (" + path
            + ", bytes " + position + " to " + endPosition + ": " + reason + ")";
    }

    public String toString() {
        return text;
    }
}
