// Cases of franz-go against a cluster: `cases BOOTSTRAP CASE` ends with 0 if the case passes.
// `cases BOOTSTRAP transactions-rate TOPIC PRODUCERS TRANSACTIONS` measures.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const limit, longLimit = 90 * time.Second, 10 * time.Minute

var cases = map[string]func(*cluster){
	"records":                     records,
	"addresses":                   addresses,
	"groups":                      groups,
	"consumer-groups":             consumerGroups,
	"patterns":                    patterns,
	"share-groups":                shareGroups,
	"administration":              administration,
	"transaction-version-1":       transactionVersionOne,
	"commits-and-aborts":          commitsAndAborts,
	"many-in-a-row":               manyInARow,
	"without-records":             withoutRecords,
	"several-batches":             severalBatches,
	"open-transactions":           openTransactions,
	"copies-with-offsets":         copiesWithOffsets,
	"fenced":                      fenced,
	"timed-out":                   timedOut,
	"message-too-large":           messageTooLarge,
	"unknown-topic":               unknownTopic,
	"described":                   described,
	"markers-of-an-administrator": markersOfAnAdministrator,
	"outlives-nodes":              outlivesNodes,
	"refused-login":               refusedLogin,
	"refused-certificate":         refusedCertificate,
}

func main() {
	measures := len(os.Args) == 6 && os.Args[2] == "transactions-rate"
	if !measures && (len(os.Args) != 3 || cases[os.Args[2]] == nil) {
		fail("usage: cases BOOTSTRAP CASE, with one of the cases %v", keys(cases))
	}
	within := limit
	if measures {
		within = longLimit
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	c := &cluster{ctx: ctx, seeds: strings.Split(os.Args[1], ","), name: os.Args[2]}
	if measures {
		producers, err := strconv.Atoi(os.Args[4])
		must(err)
		transactions, err := strconv.Atoi(os.Args[5])
		must(err)
		c.transactionsRate(os.Args[3], producers, transactions)
		return
	}
	c.admin = kadm.NewClient(c.client())
	cases[os.Args[2]](c)
	c.admin.Close()
}

// cluster is what a case runs against. Names that it makes are of this run alone.
type cluster struct {
	ctx   context.Context
	seeds []string
	name  string
	admin *kadm.Client
	made  atomic.Int32
}

func (c *cluster) client(opts ...kgo.Opt) *kgo.Client {
	cl, err := kgo.NewClient(c.with(opts)...)
	must(err)
	return cl
}

func (c *cluster) with(opts []kgo.Opt) []kgo.Opt {
	return append(append([]kgo.Opt{
		kgo.SeedBrokers(c.seeds...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.FetchMaxWait(100 * time.Millisecond),
		kgo.MetadataMinAge(50 * time.Millisecond), // a broker may hear of a new topic a moment later
	}, security()...), opts...)
}

func (c *cluster) unique(kind string) string {
	return fmt.Sprintf("%s-%s-%d-%d", c.name, kind, os.Getpid(), c.made.Add(1))
}

func (c *cluster) topic(partitions int32, settings ...string) string {
	topic := c.unique("topic")
	configs := map[string]*string{}
	for i := 0; i < len(settings); i += 2 {
		configs[settings[i]] = &settings[i+1]
	}
	_, err := c.admin.CreateTopic(c.ctx, partitions, -1, configs, topic)
	must(err)
	return topic
}

// committed returns the values that a reader of committed records sees when no transaction is open, sorted.
func (c *cluster) committed(topics ...string) []string {
	c.eventually("all transactions have ended", func() bool {
		return fmt.Sprint(c.offsets(c.admin.ListCommittedOffsets, topics)) == fmt.Sprint(c.offsets(c.admin.ListEndOffsets, topics))
	})
	return c.visible(topics...)
}

// visible returns the values that a reader of committed records sees now, sorted.
func (c *cluster) visible(topics ...string) []string {
	return c.read(c.offsets(c.admin.ListCommittedOffsets, topics), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
}

// uncommitted returns the values that a reader of all records sees, sorted.
func (c *cluster) uncommitted(topics ...string) []string {
	return c.read(c.offsets(c.admin.ListEndOffsets, topics))
}

func (c *cluster) offsets(list func(context.Context, ...string) (kadm.ListedOffsets, error), topics []string) kadm.ListedOffsets {
	found, err := list(c.ctx, topics...)
	must(err)
	must(found.Error())
	return found
}

func (c *cluster) read(ends kadm.ListedOffsets, opts ...kgo.Opt) []string {
	from := map[string]map[int32]kgo.Offset{}
	left := map[string]map[int32]int64{}
	count := 0
	ends.Each(func(end kadm.ListedOffset) {
		if end.Offset > 0 {
			if from[end.Topic] == nil {
				from[end.Topic], left[end.Topic] = map[int32]kgo.Offset{}, map[int32]int64{}
			}
			from[end.Topic][end.Partition] = kgo.NewOffset().AtStart()
			left[end.Topic][end.Partition] = end.Offset
			count++
		}
	})
	// Markers show how far a partition is read.
	cl := c.client(append(opts, kgo.ConsumePartitions(from), kgo.KeepControlRecords())...)
	defer cl.Close()
	values := []string{}
	for count > 0 {
		fetches := cl.PollFetches(c.ctx)
		must(fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			end, ok := left[r.Topic][r.Partition]
			if ok && r.Offset < end && !r.Attrs.IsControl() {
				values = append(values, string(r.Value))
			}
			if ok && r.Offset+1 >= end {
				delete(left[r.Topic], r.Partition)
				count--
			}
		})
	}
	slices.Sort(values)
	return values
}

func keys[V any](m map[string]V) []string {
	found := make([]string, 0, len(m))
	for key := range m {
		found = append(found, key)
	}
	slices.Sort(found)
	return found
}

// eventually waits until the condition holds.
func (c *cluster) eventually(what string, holds func() bool) {
	for !holds() {
		select {
		case <-c.ctx.Done():
			fail("%s: not within %v", what, limit)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func same(what string, found, expected any) {
	if fmt.Sprint(found) != fmt.Sprint(expected) {
		panic(fmt.Sprintf("%s: %v, expected %v", what, found, expected))
	}
}

func fail(format string, arguments ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", arguments...)
	os.Exit(1)
}
