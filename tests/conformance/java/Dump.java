import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.message.FetchResponseData.AbortedTransaction;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.DefaultRecordBatch;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.server.storage.log.FetchIsolation;
import org.apache.kafka.storage.internals.log.AbortedTxn;
import org.apache.kafka.storage.internals.log.FetchDataInfo;
import org.apache.kafka.storage.internals.log.ProducerStateEntry;
import org.apache.kafka.storage.internals.log.TransactionIndex;
import org.apache.kafka.storage.internals.log.UnifiedLog;

/** A log in words: all that its files say, by Kafka's own readers, or all that a consumer would see. */
final class Dump {
    private Dump() {}

    /** Every batch of every segment, in order of their offsets, and the aborted transactions of each segment. */
    static List<Object> of(File directory) throws IOException {
        List<Object> segments = new ArrayList<>();
        File[] files = directory.listFiles((in, name) -> name.endsWith(".log"));
        Arrays.sort(files);
        for (File file : files) {
            long base = Long.parseLong(file.getName().replace(".log", ""));
            List<Object> batches = new ArrayList<>();
            FileRecords records = FileRecords.open(file, false);
            for (RecordBatch batch : records.batches()) {
                batches.add(batch(batch));
            }
            records.close();
            Map<String, Object> segment = new LinkedHashMap<>();
            segment.put("base", base);
            segment.put("bytes", file.length());
            segment.put("batches", batches);
            segment.put("aborted", aborted(base, new File(directory, file.getName().replace(".log", ".txnindex"))));
            segments.add(segment);
        }
        return segments;
    }

    private static List<Object> aborted(long base, File file) throws IOException {
        List<Object> transactions = new ArrayList<>();
        if (file.exists()) {
            TransactionIndex index = new TransactionIndex(base, file);
            for (AbortedTxn each : index.allAbortedTxns()) {
                transactions.add(
                    List.of(each.producerId(), each.firstOffset(), each.lastOffset(), each.lastStableOffset()));
            }
            index.close();
        }
        return transactions;
    }

    private static Map<String, Object> batch(RecordBatch batch) {
        batch.ensureValid();
        ByteBuffer bytes = ByteBuffer.allocate(batch.sizeInBytes());
        batch.writeTo(bytes);
        bytes.flip();
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("base", batch.baseOffset());
        fields.put("last", batch.lastOffset());
        fields.put("epoch", batch.partitionLeaderEpoch());
        fields.put("attributes", bytes.getShort(21));
        fields.put("base_timestamp", bytes.getLong(27));
        fields.put("max_timestamp", batch.maxTimestamp());
        fields.put("producer", List.of(batch.producerId(), batch.producerEpoch(), batch.baseSequence()));
        fields.put("count", batch.countOrNull());
        fields.put("horizon", batch.deleteHorizonMs().isPresent() ? batch.deleteHorizonMs().getAsLong() : null);
        // Two encoders of a codec may write other bytes for the same records.
        boolean compressed = batch.isCompressed();
        fields.put("crc", compressed ? null : bytes.getInt(DefaultRecordBatch.CRC_OFFSET));
        fields.put("bytes", compressed ? null : batch.sizeInBytes());
        List<Object> records = new ArrayList<>();
        for (Record record : batch) {
            records.add(record(record));
        }
        fields.put("records", records);
        return fields;
    }

    private static List<Object> record(Record record) {
        List<Object> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            byte[] value = header.value();
            headers.add(Arrays.asList(header.key(), value == null ? null : text(ByteBuffer.wrap(value))));
        }
        return Arrays.asList(
            record.offset(), record.timestamp(), text(record.key()), text(record.value()), headers);
    }

    private static String text(ByteBuffer bytes) {
        return bytes == null ? null : StandardCharsets.ISO_8859_1.decode(bytes.duplicate()).toString();
    }

    /** Offset, timestamp, key, value and headers of each record, as a consumer of that isolation level has it. */
    static List<Object> read(UnifiedLog log, boolean committed) throws IOException {
        List<Object> records = new ArrayList<>();
        long end = committed ? log.lastStableOffset() : log.logEndOffset();
        for (long offset = log.logStartOffset(); offset < end;) {
            FetchIsolation isolation = committed ? FetchIsolation.TXN_COMMITTED : FetchIsolation.LOG_END;
            FetchDataInfo fetched = log.read(offset, 1 << 20, isolation, true);
            List<AbortedTransaction> aborted =
                new ArrayList<>(fetched.abortedTransactions.orElse(List.of()));
            Set<Long> aborting = new HashSet<>();
            long before = offset;
            for (RecordBatch batch : fetched.records.batches()) {
                aborted.removeIf(each -> {
                    if (each.firstOffset() > batch.lastOffset()) {
                        return false;
                    }
                    aborting.add(each.producerId());
                    return true;
                });
                if (batch.isControlBatch()) {
                    endTransaction(batch, aborting);
                } else if (!(batch.isTransactional() && aborting.contains(batch.producerId()))) {
                    add(records, batch, offset);
                }
                offset = batch.nextOffset();
            }
            if (offset == before) {
                break; // a gap up to the end
            }
        }
        return records;
    }

    private static void endTransaction(RecordBatch batch, Set<Long> aborting) {
        for (Record record : batch) {
            if (ControlRecordType.parse(record.key()) == ControlRecordType.ABORT) {
                aborting.remove(batch.producerId());
            }
        }
    }

    private static void add(List<Object> records, RecordBatch batch, long from) {
        for (Record record : batch) {
            if (record.offset() >= from) {
                records.add(record(record));
            }
        }
    }

    /** What the log knows of each producer: epoch, last timestamp, open transaction, and its batches. */
    static Map<Long, Object> producers(UnifiedLog log) {
        Map<Long, Object> producers = new TreeMap<>();
        for (ProducerStateEntry each : log.producerStateManager().activeProducers().values()) {
            List<Object> batches = new ArrayList<>();
            each.batchMetadata().forEach(batch -> batches.add(
                List.of(batch.firstSeq(), batch.lastSeq(), batch.firstOffset(), batch.lastOffset(), batch.timestamp())));
            long open = each.currentTxnFirstOffset().orElse(-1L);
            producers.put(each.producerId(), List.of(each.producerEpoch(), each.lastTimestamp(), open, batches));
        }
        return producers;
    }
}
