package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	commit = kgo.TryCommit
	abort  = kgo.TryAbort
)

func (c *cluster) transactional(id string, opts ...kgo.Opt) *kgo.Client {
	return c.client(append([]kgo.Opt{kgo.TransactionalID(id)}, opts...)...)
}

// write writes the value to each partition of the topic.
func (c *cluster) write(cl *kgo.Client, topic, value string, partitions ...int32) error {
	var all []*kgo.Record
	for _, p := range partitions {
		all = append(all, &kgo.Record{Topic: topic, Partition: p, Value: []byte(value)})
	}
	return cl.ProduceSync(c.ctx, all...).FirstErr()
}

func (c *cluster) end(cl *kgo.Client, how kgo.TransactionEndTry) { must(cl.EndTransaction(c.ctx, how)) }

func (c *cluster) state(id string) string {
	found, err := c.admin.DescribeTransactions(c.ctx, id)
	must(err)
	return found[id].State
}

// commitsAndAborts writes to the partitions of two topics, and aborts each third transaction.
func commitsAndAborts(c *cluster) {
	one, two := c.topic(3), c.topic(3)
	cl := c.transactional(c.unique("id"), kgo.ProducerBatchCompression(kgo.ZstdCompression()))
	defer cl.Close()
	var expected, aborted []string
	for i := range 12 {
		must(cl.BeginTransaction())
		value := fmt.Sprintf("%02d", i)
		must(c.write(cl, one, value, 0, 1, 2))
		must(c.write(cl, two, value, 0, 1, 2))
		if i%3 == 2 {
			c.end(cl, abort)
			aborted = append(aborted, slices.Repeat([]string{value}, 6)...)
		} else {
			c.end(cl, commit)
			expected = append(expected, slices.Repeat([]string{value}, 6)...)
		}
	}
	same("committed", c.committed(one, two), expected)
	all := append(expected, aborted...)
	slices.Sort(all)
	same("all", c.uncommitted(one, two), all)
}

func manyInARow(c *cluster) {
	const count = 100
	topic := c.topic(2)
	cl := c.transactional(c.unique("id"))
	defer cl.Close()
	must(cl.BeginTransaction())
	began := time.Now()
	for i := range count {
		must(c.write(cl, topic, fmt.Sprintf("%03d", i), int32(i%2)))
		must(cl.EndAndBeginTransaction(c.ctx, kgo.EndBeginTxnUnsafe, commit, func(_ context.Context, err error) error { return err }))
	}
	fmt.Printf("%.0f transactions a second\n", count/time.Since(began).Seconds())
	c.end(cl, abort)
	same("committed", len(c.committed(topic)), count)
}

func withoutRecords(c *cluster) {
	topic := c.topic(1)
	cl := c.transactional(c.unique("id"))
	defer cl.Close()
	for i := range 3 {
		for _, how := range []kgo.TransactionEndTry{commit, abort} {
			must(cl.BeginTransaction())
			c.end(cl, how)
		}
		must(cl.BeginTransaction())
		must(c.write(cl, topic, fmt.Sprint(i), 0))
		c.end(cl, commit)
	}
	same("committed", c.committed(topic), []string{"0", "1", "2"})
}

func severalBatches(c *cluster) {
	const count = 3000
	topic := c.topic(3)
	cl := c.transactional(c.unique("id"), kgo.ProducerBatchMaxBytes(64<<10), kgo.ProducerBatchCompression(kgo.NoCompression()))
	defer cl.Close()
	for _, how := range []kgo.TransactionEndTry{abort, commit} {
		must(cl.BeginTransaction())
		failed := make(chan error, count)
		for i := range count {
			value := fmt.Appendf(nil, "%v-%04d-%0900d", how, i, 0)
			cl.Produce(c.ctx, &kgo.Record{Topic: topic, Partition: int32(i % 3), Value: value}, func(_ *kgo.Record, err error) { failed <- err })
		}
		must(cl.Flush(c.ctx))
		for range count {
			must(<-failed)
		}
		c.end(cl, how)
	}
	found := c.committed(topic)
	same("committed", len(found), count)
	for i, value := range found {
		same("value", value[:9], fmt.Sprintf("%v-%04d", commit, i)[:9])
	}
}

// openTransactions hides an open transaction, and everything behind it, from readers of committed records.
func openTransactions(c *cluster) {
	topic := c.topic(1)
	plain := c.client()
	defer plain.Close()
	cl := c.transactional(c.unique("id"))
	defer cl.Close()
	must(c.write(plain, topic, "1 before", 0))
	must(cl.BeginTransaction())
	must(c.write(cl, topic, "2 open", 0))
	must(c.write(plain, topic, "3 behind", 0))
	same("while it is open", c.visible(topic), []string{"1 before"})
	same("all", c.uncommitted(topic), []string{"1 before", "2 open", "3 behind"})
	c.end(cl, commit)
	same("at last", c.committed(topic), []string{"1 before", "2 open", "3 behind"})
}

// copiesWithOffsets copies a topic by two members of a group, each record once, although some transactions are
// aborted and the group changes meanwhile.
func copiesWithOffsets(c *cluster) {
	const count, partitions = 400, 4
	source, target, group := c.topic(partitions), c.topic(partitions), c.unique("group")
	plain := c.client()
	defer plain.Close()
	expected := []string{}
	for i := range count {
		value := fmt.Sprintf("%03d", i)
		expected = append(expected, value)
		must(c.write(plain, source, value, int32(i%partitions)))
	}
	join := func(number int) *kgo.GroupTransactSession {
		session, err := kgo.NewGroupTransactSession(c.with([]kgo.Opt{
			kgo.TransactionalID(fmt.Sprintf("%s-%d", group, number)),
			kgo.ConsumerGroup(group), kgo.ConsumeTopics(source),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
			kgo.FetchIsolationLevel(kgo.ReadCommitted()),
			kgo.HeartbeatInterval(100 * time.Millisecond),
			kgo.RequireStableFetchOffsets(),
		})...)
		must(err)
		return session
	}
	sessions := []*kgo.GroupTransactSession{join(0)}
	copied := 0
	for round := 0; copied < count; round++ {
		if copied >= count/4 && len(sessions) == 1 {
			sessions = append(sessions, join(1))
		}
		session := sessions[round%len(sessions)]
		ctx, cancel := context.WithTimeout(c.ctx, 100*time.Millisecond)
		fetches := session.PollRecords(ctx, 20)
		cancel()
		must(c.ctx.Err())
		if len(fetches.Records()) == 0 {
			continue
		}
		must(session.Begin())
		for _, r := range fetches.Records() {
			session.Produce(c.ctx, &kgo.Record{Topic: target, Partition: r.Partition, Value: r.Value}, nil)
		}
		done, err := session.End(c.ctx, kgo.TransactionEndTry(round%5 != 3))
		must(err)
		if done {
			copied += len(fetches.Records())
		}
	}
	for _, session := range sessions {
		session.Close()
	}
	same("copied", c.committed(target), expected)
	lag, err := c.admin.Lag(c.ctx, group)
	must(err)
	same("lag", lag[group].Lag.Total(), 0)
}

func fenced(c *cluster) {
	topic, id := c.topic(1), c.unique("id")
	zombie := c.transactional(id)
	defer zombie.Close()
	must(zombie.BeginTransaction())
	must(c.write(zombie, topic, "of the zombie", 0))
	successor := c.transactional(id)
	defer successor.Close()
	must(successor.BeginTransaction())
	must(c.write(successor, topic, "of the successor", 0))
	if err := c.write(zombie, topic, "too late", 0); !isFenced(err) {
		panic(fmt.Sprintf("the zombie writes: %v", err))
	}
	if err := zombie.EndTransaction(c.ctx, commit); err == nil {
		panic("the zombie commits")
	}
	c.end(successor, commit)
	same("committed", c.committed(topic), []string{"of the successor"})
}

func isFenced(err error) bool {
	return errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch)
}

// timedOut waits until the coordinator has aborted. Under transaction version 2 the abort of the client is taken as
// the same one, and the client goes on. Under version 1 it is fenced, and another one goes on.
func timedOut(c *cluster) {
	topic, id := c.topic(1), c.unique("id")
	cl := c.transactional(id, kgo.TransactionTimeout(500*time.Millisecond))
	defer cl.Close()
	must(cl.BeginTransaction())
	must(c.write(cl, topic, "too slow", 0))
	c.eventually("the abort", func() bool { return c.state(id) == "CompleteAbort" })
	if err := c.write(cl, topic, "too late", 0); !errors.Is(err, kerr.InvalidProducerEpoch) {
		panic(fmt.Sprintf("the write after the abort: %v", err))
	}
	err := cl.EndTransaction(c.ctx, abort)
	if err == nil {
		err = cl.BeginTransaction()
	}
	if isFenced(err) {
		cl = c.transactional(id)
		defer cl.Close()
		err = cl.BeginTransaction()
	}
	must(err)
	must(c.write(cl, topic, "in time", 0))
	c.end(cl, commit)
	same("committed", c.committed(topic), []string{"in time"})

	// A commit without another write.
	late := c.transactional(id, kgo.TransactionTimeout(500*time.Millisecond))
	defer late.Close()
	must(late.BeginTransaction())
	must(c.write(late, topic, "too slow again", 0))
	c.eventually("the abort", func() bool { return c.state(id) == "CompleteAbort" })
	if err := late.EndTransaction(c.ctx, commit); !isFenced(err) {
		panic(fmt.Sprintf("the commit after the abort: %v", err))
	}
	same("committed", c.committed(topic), []string{"in time"})
}

// messageTooLarge is an error that ends with an abort; the producer goes on.
func messageTooLarge(c *cluster) {
	topic := c.topic(2, "max.message.bytes", "2000")
	cl := c.transactional(c.unique("id"), kgo.ProducerBatchCompression(kgo.NoCompression()))
	defer cl.Close()
	large := string(make([]byte, 5000))
	for i := range 2 {
		must(cl.BeginTransaction())
		if i == 1 {
			must(c.write(cl, topic, "aborted", 0, 1))
		}
		if err := c.write(cl, topic, large, 0); !errors.Is(err, kerr.MessageTooLarge) {
			panic(fmt.Sprintf("a large message: %v", err))
		}
		c.end(cl, abort)
		must(cl.BeginTransaction())
		must(c.write(cl, topic, fmt.Sprint("fits ", i), 0, 1))
		c.end(cl, commit)
	}
	same("committed", c.committed(topic), []string{"fits 0", "fits 0", "fits 1", "fits 1"})
}

func unknownTopic(c *cluster) {
	topic := c.topic(1)
	cl := c.transactional(c.unique("id"), kgo.UnknownTopicRetries(1))
	defer cl.Close()
	must(cl.BeginTransaction())
	must(c.write(cl, topic, "aborted", 0))
	if err := c.write(cl, c.unique("missing"), "lost", 0); !errors.Is(err, kerr.UnknownTopicOrPartition) {
		panic(fmt.Sprintf("an unknown topic: %v", err))
	}
	c.end(cl, abort)
	must(cl.BeginTransaction())
	must(c.write(cl, topic, "committed", 0))
	c.end(cl, commit)
	same("committed", c.committed(topic), []string{"committed"})
}

// described shows what administrators see of transactions.
func described(c *cluster) {
	topic, id := c.topic(2), c.unique("id")
	cl := c.transactional(id, kgo.TransactionTimeout(70*time.Second))
	defer cl.Close()
	open := func(partition int32) bool {
		found, err := c.admin.DescribeProducers(c.ctx, kadm.TopicsSet{topic: {partition: {}}})
		must(err)
		for _, each := range found.SortedProducers() {
			if each.CurrentTxnStartOffset >= 0 {
				return true
			}
		}
		return false
	}
	listed := func(states ...string) bool {
		found, err := c.admin.ListTransactions(c.ctx, nil, states)
		must(err)
		_, has := found[id]
		return has
	}
	must(cl.BeginTransaction())
	must(c.write(cl, topic, "v", 1))
	found, err := c.admin.DescribeTransactions(c.ctx, id)
	must(err)
	one := found[id]
	must(one.Err)
	same("ongoing", [4]any{one.State, one.TimeoutMillis, one.Topics.Sorted(), one.StartTimestamp > 0},
		[4]any{"Ongoing", 70_000, kadm.TopicsList{{Topic: topic, Partitions: []int32{1}}}, true})
	same("open", [2]bool{open(0), open(1)}, [2]bool{false, true})
	same("listed", [3]bool{listed(), listed("Ongoing"), listed("CompleteCommit", "Empty")}, [3]bool{true, true, false})
	matching, err := c.admin.ListTransactionsByTxPattern(c.ctx, nil, nil, id+".*")
	must(err)
	same("matching", keys(matching), []string{id})
	c.end(cl, commit)
	c.eventually("complete", func() bool { return c.state(id) == "CompleteCommit" })
	same("open at last", [2]bool{open(0), open(1)}, [2]bool{false, false})
	same("listed at last", [2]bool{listed("Ongoing"), listed("CompleteCommit", "Empty")}, [2]bool{false, true})
	unknown, err := c.admin.DescribeTransactions(c.ctx, "no-such-id")
	must(err)
	if !errors.Is(unknown["no-such-id"].Err, kerr.TransactionalIDNotFound) {
		panic(fmt.Sprintf("an unknown id: %v", unknown["no-such-id"].Err))
	}
}

// markersOfAnAdministrator end a transaction on one partition, as tools do for one that hangs.
func markersOfAnAdministrator(c *cluster) {
	topic := c.topic(1)
	cl := c.transactional(c.unique("id"))
	defer cl.Close()
	must(cl.BeginTransaction())
	must(c.write(cl, topic, "1 hangs", 0))
	plain := c.client()
	defer plain.Close()
	must(c.write(plain, topic, "2 behind", 0))
	same("while it hangs", c.visible(topic), []string{})
	id, epoch, err := cl.ProducerID(c.ctx)
	must(err)
	partition := kadm.TopicsSet{topic: {0: {}}}
	written, err := c.admin.WriteTxnMarkers(c.ctx, kadm.TxnMarkers{ProducerID: id, ProducerEpoch: epoch, Topics: partition})
	must(err)
	must(written[id].Topics[topic].Partitions[0].Err)
	same("without it", c.visible(topic), []string{"2 behind"})
}

// outlivesNodes commits while nodes are killed and started: it prints the number of each transaction, and waits
// for a line before it goes on. A commit whose answer was lost may hold or not, as a whole.
func outlivesNodes(c *cluster) {
	const count = 24
	topic := c.topic(3)
	id := c.unique("id")
	cl := c.transactional(id)
	var expected, unknown []string
	lines := bufio.NewScanner(os.Stdin)
	for i := range count {
		value := fmt.Sprintf("%02d", i)
		fmt.Println("transaction", i)
		if !lines.Scan() {
			panic("the input has ended")
		}
		if err := cl.BeginTransaction(); err != nil {
			// This client may give up when the coordinator is no longer among the brokers. Another one goes on.
			fmt.Println("another client begins", value, err)
			cl.Close()
			cl = c.transactional(id)
			must(cl.BeginTransaction())
		}
		if err := c.write(cl, topic, value, 0, 1, 2); err != nil {
			fmt.Println("aborts", value, err)
			if err := cl.EndTransaction(c.ctx, abort); err != nil {
				fmt.Println("cannot abort", value, err)
			}
		} else if err := cl.EndTransaction(c.ctx, commit); err != nil {
			fmt.Println("unknown", value, err)
			unknown = append(unknown, value)
			if err := cl.EndTransaction(c.ctx, abort); err != nil {
				fmt.Println("cannot abort", value, err)
			}
		} else {
			expected = append(expected, value)
		}
	}
	cl.Close()
	times := map[string]int{}
	for _, value := range c.committed(topic) {
		times[value]++
	}
	for _, value := range expected {
		same("committed "+value, times[value], 3)
		delete(times, value)
	}
	for _, value := range unknown {
		if times[value] != 0 && times[value] != 3 {
			panic(fmt.Sprintf("%s is on %d of 3 partitions", value, times[value]))
		}
		delete(times, value)
	}
	same("aborted, but visible", keys(times), []string{})
	if len(expected) < count*3/4 {
		panic(fmt.Sprintf("only %d of %d transactions are committed", len(expected), count))
	}
}
