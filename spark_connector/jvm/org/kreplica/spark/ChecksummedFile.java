package org.kreplica.spark;

import java.io.BufferedOutputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.util.zip.CRC32;

/**
 * A local file, and the CRC-32 of each CHUNK of its bytes, which Hadoop's local file system verifies.
 *
 * The checksum file contains "crc\0", the length of a chunk, and the checksums, big-endian. One thread.
 */
final class ChecksummedFile extends OutputStream {
    private static final int MAGIC = 0x6372_6300;
    private static final int CHUNK = 512;

    private final OutputStream file;
    private final ByteArrayOutputStream checksums = new ByteArrayOutputStream();
    private final DataOutputStream noted = new DataOutputStream(checksums);
    private final CRC32 checksum = new CRC32();
    private int inChunk;

    ChecksummedFile(File path) throws IOException {
        file = new BufferedOutputStream(new FileOutputStream(path));
        noted.writeInt(MAGIC);
        noted.writeInt(CHUNK);
    }

    public void write(int one) throws IOException {
        write(new byte[] {(byte) one}, 0, 1);
    }

    public void write(byte[] bytes, int offset, int length) throws IOException {
        file.write(bytes, offset, length);
        int at = offset;
        while (at < offset + length) {
            int some = Math.min(offset + length - at, CHUNK - inChunk);
            checksum.update(bytes, at, some);
            at += some;
            inChunk += some;
            if (inChunk == CHUNK) {
                note();
            }
        }
    }

    private void note() throws IOException {
        noted.writeInt((int) checksum.getValue());
        checksum.reset();
        inChunk = 0;
    }

    public void flush() throws IOException {
        file.flush();
    }

    public void close() throws IOException {
        file.close();
    }

    /** Writes the checksums of everything written so far; nothing may be written afterwards. */
    void writeChecksums(File path) throws IOException {
        if (inChunk > 0) {
            note();
        }
        OutputStream out = new FileOutputStream(path);
        try {
            checksums.writeTo(out);
        } finally {
            out.close();
        }
    }
}
