package org.kreplica.spark;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/** The bytes of Kafka's requests and answers, in their flexible versions; numbers are big-endian. */
final class Wire {
    private Wire() {
    }

    /** Writes the fields of a request one after another. One thread. */
    static final class RequestWriter {
        private static final int FIRST_BYTES = 256;

        private byte[] bytes = new byte[FIRST_BYTES];
        private int size;

        private ByteBuffer room(int count) {
            if (count > bytes.length - size) {
                bytes = Arrays.copyOf(bytes, Math.max(bytes.length * 2, size + count));
            }
            ByteBuffer found = ByteBuffer.wrap(bytes);
            found.position(size);
            size += count;
            return found;
        }

        RequestWriter int8(int value) {
            room(1).put((byte) value);
            return this;
        }

        RequestWriter bool(boolean value) {
            return int8(value ? 1 : 0);
        }

        RequestWriter int16(int value) {
            room(2).putShort((short) value);
            return this;
        }

        RequestWriter int32(int value) {
            room(4).putInt(value);
            return this;
        }

        RequestWriter int64(long value) {
            room(8).putLong(value);
            return this;
        }

        RequestWriter unsigned(int value) {
            int left = value;
            while (left >>> 7 != 0) {
                int8(left & 0x7f | 0x80);
                left >>>= 7;
            }
            return int8(left);
        }

        /** Writes the length of an array, whose elements follow. */
        RequestWriter array(int count) {
            return unsigned(count + 1);
        }

        /** Writes a text, which may be null. */
        RequestWriter text(String value) {
            if (value == null) {
                return int8(0);
            }
            byte[] encoded = value.getBytes(StandardCharsets.UTF_8);
            unsigned(encoded.length + 1);
            room(encoded.length).put(encoded);
            return this;
        }

        /** Writes bytes with their length. */
        RequestWriter bytes(ByteBuffer value) {
            unsigned(value.remaining() + 1);
            room(value.remaining()).put((ByteBuffer) value.duplicate());
            return this;
        }

        /** Writes a text with the length in two bytes, as headers of requests have it. */
        RequestWriter shortText(String value) {
            byte[] encoded = value.getBytes(StandardCharsets.UTF_8);
            int16(encoded.length);
            room(encoded.length).put(encoded);
            return this;
        }

        /** Ends a structure, which has no tagged fields. */
        RequestWriter end() {
            return int8(0);
        }

        int size() {
            return size;
        }

        ByteBuffer written() {
            return ByteBuffer.wrap(bytes, 0, size);
        }
    }

    /** Reads the fields of an answer one after another. Every length is compared with the bytes left. One thread. */
    static final class AnswerReader {
        private final ByteBuffer bytes;

        AnswerReader(ByteBuffer bytes) {
            this.bytes = bytes;
        }

        private void require(int count) throws IOException {
            if (count < 0 || count > bytes.remaining()) {
                throw new IOException("a field of " + count + " bytes, but only " + bytes.remaining() + " are left");
            }
        }

        int int8() throws IOException {
            require(1);
            return bytes.get();
        }

        boolean bool() throws IOException {
            return int8() != 0;
        }

        int int16() throws IOException {
            require(2);
            return bytes.getShort();
        }

        int int32() throws IOException {
            require(4);
            return bytes.getInt();
        }

        long int64() throws IOException {
            require(8);
            return bytes.getLong();
        }

        int unsigned() throws IOException {
            int value = 0;
            for (int shift = 0; shift < 35; shift += 7) {
                int next = int8();
                value |= (next & 0x7f) << shift;
                if (next >= 0) {
                    return value;
                }
            }
            throw new IOException("a number of more than 32 bits");
        }

        /** Returns the number of elements of an array, -1 for null. */
        int array() throws IOException {
            int count = unsigned() - 1;
            if (count > bytes.remaining()) {
                throw new IOException("an array of " + count + ", but only " + bytes.remaining() + " bytes are left");
            }
            return count;
        }

        /** Returns a text, which may be null. */
        String text() throws IOException {
            int length = unsigned() - 1;
            if (length == -1) {
                return null;
            }
            require(length);
            byte[] encoded = new byte[length];
            bytes.get(encoded);
            return new String(encoded, StandardCharsets.UTF_8);
        }

        /** Returns bytes with their length, which share the answer's memory; empty for null. */
        ByteBuffer bytes() throws IOException {
            int length = Math.max(0, unsigned() - 1);
            require(length);
            ByteBuffer found = (ByteBuffer) bytes.slice();
            found.limit(length);
            bytes.position(bytes.position() + length);
            return found;
        }

        void skip(int count) throws IOException {
            require(count);
            bytes.position(bytes.position() + count);
        }

        /** Skips an array of numbers. */
        void skipArray(int elementBytes) throws IOException {
            int count = Math.max(0, array());
            if ((long) count * elementBytes > bytes.remaining()) {
                throw new IOException("an array ends behind the answer");
            }
            skip(count * elementBytes);
        }

        /** Ends a structure: skips its tagged fields. */
        void end() throws IOException {
            int count = unsigned();
            for (int i = 0; i < count; i++) {
                unsigned();
                skip(unsigned());
            }
        }

        int left() {
            return bytes.remaining();
        }
    }
}
