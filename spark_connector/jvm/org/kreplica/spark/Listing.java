package org.kreplica.spark;

import java.io.IOException;
import java.nio.file.DirectoryIteratorException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;

/** Lists a directory; a failure is an error with its reason, where `File.list` would return null. */
final class Listing {
    private Listing() {
    }

    /** Returns the names, sorted. Raises NoSuchFileException, NotDirectoryException, or another IOException. */
    static String[] names(String directory) throws IOException {
        List found = new ArrayList();
        DirectoryStream stream = Files.newDirectoryStream(Paths.get(directory, new String[0]));
        try {
            for (Iterator i = stream.iterator(); i.hasNext();) {
                found.add(((Path) i.next()).getFileName().toString());
            }
        } catch (DirectoryIteratorException error) {
            throw error.getCause();
        } finally {
            stream.close();
        }
        Collections.sort(found);
        return (String[]) found.toArray(new String[0]);
    }
}
