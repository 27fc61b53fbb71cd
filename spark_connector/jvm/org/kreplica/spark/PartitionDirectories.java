package org.kreplica.spark;

import java.io.File;
import java.io.IOException;
import java.net.URI;
import java.nio.file.DirectoryIteratorException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.nio.file.NotDirectoryException;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Set;
import java.util.SortedMap;
import java.util.TreeMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.kreplica.spark.ReadException.NotForThisReader;

/**
 * The directories of each partition. A path is a partition's directory or one that holds several, such as a node's
 * log directory, or a pattern of Hadoop's for such paths. Immutable after `find`.
 */
final class PartitionDirectories {
    private final List paths;
    private final SortedMap directories = new TreeMap();
    /** The reason why a partition's directory could not be listed, by partition. */
    private final SortedMap unreadable = new TreeMap();
    /** Whether a directory that has a partition's name held no segment yet. */
    private boolean mayGrow;

    private PartitionDirectories(List paths) {
        this.paths = paths;
    }

    /** Lists the paths. Raises ReadException for one that cannot be listed or holds no partition. */
    static PartitionDirectories find(List paths) throws IOException {
        PartitionDirectories found = new PartitionDirectories(paths);
        for (Iterator i = paths.iterator(); i.hasNext();) {
            List places = places((String) i.next());
            for (Iterator j = places.iterator(); j.hasNext();) {
                found.look((String) j.next());
            }
        }
        return found;
    }

    /** Returns whether the directory does not exist yet, or has nothing with the name of a partition. */
    static boolean isEmpty(String path) throws IOException {
        try {
            String[] names = Listing.names(path);
            for (int i = 0; i < names.length; i++) {
                if (TopicPartition.ofDirectory(names[i]) != null) {
                    return false;
                }
            }
            return !holdsSegment(names);
        } catch (NoSuchFileException error) {
            return true;
        }
    }

    /** Returns the paths that match, in order, if the given one does not exist and is a pattern. */
    private static List places(String given) throws IOException {
        boolean isPattern = given.matches(".*[*?\\[{].*") && !new File(given).exists();
        if (!isPattern) {
            return Collections.singletonList(given);
        }
        FileSystem files = new RawLocalFileSystem();
        files.initialize(URI.create("file:///"), new Configuration(false));
        FileStatus[] matches;
        try {
            matches = files.globStatus(new org.apache.hadoop.fs.Path(new File(given).getAbsolutePath()));
        } finally {
            files.close();
        }
        List found = new ArrayList();
        for (int i = 0; matches != null && i < matches.length; i++) {
            String path = matches[i].getPath().toUri().getPath();
            if (!isOfSink(path)) {
                found.add(path);
            }
        }
        if (found.isEmpty()) {
            throw new ReadException(given + ": no directory matches this pattern");
        }
        Collections.sort(found);
        return found;
    }

    /** Returns whether a sink keeps its commits there, beside the directory that it writes. */
    private static boolean isOfSink(String path) {
        return path.endsWith(".spark") && new File(path.substring(0, path.length() - ".spark".length())).isDirectory();
    }

    /** Returns the times at which the paths were changed last; null if that does not show new partitions. */
    List times() throws IOException {
        List found = new ArrayList();
        for (Iterator i = paths.iterator(); i.hasNext();) {
            java.nio.file.Path path = Paths.get((String) i.next(), new String[0]);
            if (mayGrow || !unreadable.isEmpty() || !Files.isDirectory(path, new LinkOption[0])) {
                return null;
            }
            found.add(Files.getLastModifiedTime(path, new LinkOption[0]));
        }
        return found;
    }

    private void look(String given) throws IOException {
        String[] names;
        File path;
        try {
            path = new File(given).getCanonicalFile();
            names = Listing.names(path.getPath());
        } catch (IOException error) {
            if (error instanceof NoSuchFileException || error instanceof NotDirectoryException) {
                throw new ReadException(given + ": there is no such directory", error);
            }
            throw ReadException.of(error);
        }
        if (holdsSegment(names)) {
            TopicPartition at = TopicPartition.ofDirectory(path.getName());
            if (at == null) {
                throw new ReadException(path + ": not a partition's directory, whose name looks like topic-0");
            }
            add(at, path);
            return;
        }
        boolean isEmpty = true;
        for (int i = 0; i < names.length; i++) {
            TopicPartition at = TopicPartition.ofDirectory(names[i]);
            File directory = new File(path, names[i]);
            if (at != null && isPartition(at, directory)) {
                add(at, directory);
                isEmpty = false;
            } else if (at != null) {
                mayGrow = true;
            }
        }
        if (isEmpty) {
            throw new ReadException(path + ": neither a partition's directory nor a directory of partitions");
        }
    }

    private void add(TopicPartition at, File directory) {
        if (!directories.containsKey(at)) {
            directories.put(at, new ArrayList());
        }
        List replicas = (List) directories.get(at);
        if (!replicas.contains(directory.getPath())) {
            replicas.add(directory.getPath());
        }
    }

    /** Returns whether the directory may hold a log: one that cannot be listed counts, so it is not ignored. */
    private boolean isPartition(TopicPartition at, File directory) {
        try {
            return holdsSegment(Listing.names(directory.getPath()));
        } catch (IOException error) {
            // Ignore a file, or a directory that was removed since its parent was listed. But a dangling link
            // may be a disk that is not mounted.
            boolean isNone = error instanceof NotDirectoryException
                || error instanceof NoSuchFileException && !Files.isSymbolicLink(directory.toPath());
            if (!isNone && !unreadable.containsKey(at)) {
                unreadable.put(at, error);
            }
            return !isNone;
        }
    }

    private static boolean holdsSegment(String[] names) {
        for (int i = 0; i < names.length; i++) {
            if (names[i].matches("\\d{20}\\.log")) {
                return true;
            }
        }
        return false;
    }

    Set partitions() {
        return directories.keySet();
    }

    /**
     * Returns the directory to read: of several the one with the highest high watermark, then the longest log. Raises
     * ReadException if one of them cannot be listed.
     */
    String directory(TopicPartition at) throws IOException {
        List replicas = (List) directories.get(at);
        if (replicas == null) {
            throw new ReadException(at + ": " + this + " has no such partition");
        }
        if (unreadable.containsKey(at)) {
            throw ReadException.of((IOException) unreadable.get(at));
        }
        String best = (String) replicas.get(0);
        LogStanding standing = null;
        for (Iterator i = replicas.iterator(); replicas.size() > 1 && i.hasNext();) {
            String each = (String) i.next();
            LogStanding found = LogStanding.read(each);
            if (found == null || !found.isLive()) {
                throw new NotForThisReader(at + ": has several directories, and " + each
                        + " has no published state");
            }
            boolean better = standing == null || found.highWatermark > standing.highWatermark
                || found.highWatermark == standing.highWatermark && found.logEndOffset > standing.logEndOffset;
            if (better) {
                standing = found;
                best = each;
            }
        }
        return best;
    }

    public String toString() {
        StringBuilder text = new StringBuilder();
        for (Iterator i = paths.iterator(); i.hasNext();) {
            text.append(text.length() == 0 ? "" : ", ").append(i.next());
        }
        return text.toString();
    }

    /** Lists a directory; a failure is an error with its reason, where `File.list` would return null. */
    static final class Listing {
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
}
