package org.kreplica.spark;

import java.io.File;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.Set;
import java.util.SortedMap;
import java.util.TreeMap;

/**
 * Which partitions lie in which directories. A path is a partition's directory, or one that holds several, as a node's
 * log directory does. Immutable.
 */
final class PartitionDirectories {
    private final List paths;
    private final SortedMap directories;

    private PartitionDirectories(List paths, SortedMap directories) {
        this.paths = paths;
        this.directories = directories;
    }

    /** Look into the paths. Raises ReadException for one that is no directory or holds no partition. */
    static PartitionDirectories find(List paths) throws IOException {
        SortedMap found = new TreeMap();
        for (Iterator i = paths.iterator(); i.hasNext();) {
            File path = new File((String) i.next()).getCanonicalFile();
            if (!path.isDirectory()) {
                throw new ReadException(path + ": there is no such directory");
            }
            if (isPartition(path)) {
                add(found, path, true);
                continue;
            }
            File[] inside = path.listFiles();
            Arrays.sort(inside);
            int before = found.size();
            for (int j = 0; j < inside.length; j++) {
                if (!inside[j].getName().endsWith("-delete") && isPartition(inside[j])) {
                    add(found, inside[j], false);
                }
            }
            if (found.isEmpty() || before == found.size() && !holdsKnown(found, path)) {
                throw new ReadException(path + ": neither a partition's directory nor one that holds any");
            }
        }
        return new PartitionDirectories(paths, found);
    }

    private static boolean holdsKnown(SortedMap found, File path) {
        for (Iterator i = found.values().iterator(); i.hasNext();) {
            for (Iterator j = ((List) i.next()).iterator(); j.hasNext();) {
                if (new File((String) j.next()).getParentFile().equals(path)) {
                    return true;
                }
            }
        }
        return false;
    }

    private static void add(SortedMap found, File directory, boolean isNamed) {
        TopicPartition at = TopicPartition.ofDirectory(directory.getName());
        if (at == null) {
            if (isNamed) {
                throw new ReadException(directory + ": no partition's directory is named so, as topic-0 would be");
            }
            return;
        }
        if (!found.containsKey(at)) {
            found.put(at, new ArrayList());
        }
        List replicas = (List) found.get(at);
        if (!replicas.contains(directory.getPath())) {
            replicas.add(directory.getPath());
        }
    }

    private static boolean isPartition(File directory) {
        String[] names = directory.list();
        for (int i = 0; names != null && i < names.length; i++) {
            if (names[i].matches("\\d{20}\\.log")) {
                return true;
            }
        }
        return false;
    }

    Set partitions() {
        return directories.keySet();
    }

    /** The directory to read: of several the one with the highest high watermark, then the longest log. */
    String directory(TopicPartition at) throws IOException {
        List replicas = (List) directories.get(at);
        if (replicas == null) {
            throw new ReadException(at + ": no such partition in " + this);
        }
        String best = (String) replicas.get(0);
        LogStanding standing = null;
        for (Iterator i = replicas.iterator(); replicas.size() > 1 && i.hasNext();) {
            String each = (String) i.next();
            LogStanding found = LogStanding.read(each);
            if (found == null || !found.isLive()) {
                throw new NotForThisReader(at + ": there are several directories, and " + each
                    + " has no standing published");
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
}
