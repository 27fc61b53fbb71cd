package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// addresses knows the brokers by EXPECTED_BROKERS, "HOST:PORT,..." with hosts of IPv6 in brackets, and uses them.
func addresses(c *cluster) {
	var found []string
	for _, each := range must2(c.admin.ListBrokers(c.ctx)) {
		found = append(found, net.JoinHostPort(each.Host, fmt.Sprint(each.Port)))
	}
	slices.Sort(found)
	same("brokers", strings.Join(found, ","), os.Getenv("EXPECTED_BROKERS"))
	records(c)
}

// records writes with each codec and kind of acknowledgement, and reads everything as it was written.
func records(c *cluster) {
	for name, opts := range map[string][]kgo.Opt{
		"plain":  {kgo.ProducerBatchCompression(kgo.NoCompression())},
		"gzip":   {kgo.ProducerBatchCompression(kgo.GzipCompression())},
		"snappy": {kgo.ProducerBatchCompression(kgo.SnappyCompression())},
		"lz4":    {kgo.ProducerBatchCompression(kgo.Lz4Compression())},
		"zstd":   {kgo.ProducerBatchCompression(kgo.ZstdCompression())},
		"acks=1": {kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite()},
		"acks=0": {kgo.RequiredAcks(kgo.NoAck()), kgo.DisableIdempotentWrite()},
	} {
		topic := c.topic(1)
		producer := c.client(append(opts, kgo.DefaultProduceTopic(topic))...)
		sent := make([]*kgo.Record, 50)
		for i := range sent {
			sent[i] = &kgo.Record{
				Key:       fmt.Appendf(nil, "key %d", i),
				Value:     []byte(strings.Repeat(fmt.Sprintf("value %d ", i), 10)),
				Headers:   []kgo.RecordHeader{{Key: "h", Value: []byte("x")}, {Key: "null"}},
				Timestamp: time.UnixMilli(1_000_000 + int64(i)),
			}
		}
		sent[7].Key, sent[8].Value = nil, nil
		must(producer.ProduceSync(c.ctx, sent...).FirstErr())
		producer.Close()
		reader := c.client(kgo.ConsumeTopics(topic))
		var found []*kgo.Record
		for len(found) < len(sent) {
			fetches := reader.PollFetches(c.ctx)
			must(fetches.Err())
			found = append(found, fetches.Records()...)
		}
		reader.Close()
		for i, r := range found {
			same(name, [4]any{r.Offset, r.Key, r.Value, r.Headers}, [4]any{i, sent[i].Key, sent[i].Value, sent[i].Headers})
			same(name, [3]any{r.Key == nil, r.Value == nil, r.Timestamp.UnixMilli()}, [3]any{i == 7, i == 8, 1_000_000 + i})
		}
	}
}

// groups has members of the classic protocol go through the life of a group.
func groups(c *cluster) {
	state := func(group string) string {
		described, err := c.admin.DescribeGroups(c.ctx, group)
		must(err)
		return described[group].State
	}
	lifeOfAGroup(c, state, kgo.Balancers(kgo.CooperativeStickyBalancer()))
	lifeOfAGroup(c, state, kgo.Balancers(kgo.RangeBalancer()))
}

// consumerGroups has members of the consumer protocol do the same.
func consumerGroups(c *cluster) {
	state := func(group string) string {
		described, err := c.admin.DescribeConsumerGroups(c.ctx, group)
		must(err)
		return described[group].State
	}
	for _, balancer := range []kgo.GroupBalancer{kgo.StickyBalancer(), kgo.RangeBalancer()} {
		lifeOfAGroup(c, state, kgo.ServerSideBalancer(), kgo.Balancers(balancer))
	}
}

// patterns finds topics by a regular expression, and those that come later.
func patterns(c *cluster) {
	topic, group := c.topic(2), c.unique("group")
	m := join(c, group, topic, topic+"(-later)?",
		kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer()), kgo.ConsumeRegex(),
		kgo.MetadataMaxAge(500*time.Millisecond)) // it joins once its own metadata has a topic that matches
	c.eventually("the topic is found", func() bool { return m.poll() == 2 })
	_, err := c.admin.CreateTopic(c.ctx, 3, -1, nil, topic+"-later")
	must(err)
	producer := c.client(kgo.DefaultProduceTopic(topic + "-later"))
	must(producer.ProduceSync(c.ctx, &kgo.Record{Partition: 1, Value: []byte("later")}).FirstErr())
	producer.Close()
	c.eventually("the later topic is read", func() bool {
		m.poll()
		return len(m.values) == 1
	})
	m.client.Close()
}

// shareGroups accepts, releases and rejects records of a share group, and renews the locks of some.
func shareGroups(c *cluster) {
	topic, group := c.topic(1), c.unique("group")
	earliest := "earliest"
	config := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	config.Name, config.Value = "share.auto.offset.reset", &earliest
	resource := kmsg.NewIncrementalAlterConfigsRequestResource()
	resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeGroupConfig, group
	resource.Configs = append(resource.Configs, config)
	request := kmsg.NewPtrIncrementalAlterConfigsRequest()
	request.Resources = append(request.Resources, resource)
	client := c.client(kgo.ShareGroup(group), kgo.ConsumeTopics(topic))
	altered, err := request.RequestWith(c.ctx, client)
	must(err)
	same("altered", altered.Resources[0].ErrorCode, 0)
	producer := c.client(kgo.DefaultProduceTopic(topic))
	for i := range 9 {
		must(producer.ProduceSync(c.ctx, &kgo.Record{Value: fmt.Appendf(nil, "%d", i)}).FirstErr())
	}
	producer.Close()
	seen := map[string]int{}
	read := func(until int, status func(*kgo.Record) kgo.AckStatus) {
		for count := 0; count < until; {
			fetches := client.PollFetches(c.ctx)
			must(fetches.Err())
			fetches.EachRecord(func(r *kgo.Record) {
				seen[string(r.Value)]++
				count++
				client.MarkAcks(status(r), r)
			})
			must(client.FlushAcks(c.ctx))
		}
	}
	read(9, func(r *kgo.Record) kgo.AckStatus {
		return []kgo.AckStatus{kgo.AckAccept, kgo.AckRelease, kgo.AckReject}[r.Offset%3]
	})
	read(3, func(*kgo.Record) kgo.AckStatus { return kgo.AckAccept })
	client.Close()
	same("seen", seen, map[string]int{"0": 1, "1": 2, "2": 1, "3": 1, "4": 2, "5": 1, "6": 1, "7": 2, "8": 1})
}

// lifeOfAGroup lets members share a topic, and a later member go on behind what was committed.
func lifeOfAGroup(c *cluster, state func(string) string, opts ...kgo.Opt) {
	const partitions, each = 4, 10
	topic, group := c.topic(partitions), c.unique("group")
	producer := c.client(kgo.DefaultProduceTopic(topic))
	for i := range partitions * each {
		must(producer.ProduceSync(c.ctx, &kgo.Record{Partition: int32(i % partitions), Value: fmt.Appendf(nil, "%02d", i)}).FirstErr())
	}
	producer.Close()
	first := join(c, group, topic, topic, opts...)
	c.eventually("one member has all partitions", func() bool { return first.poll() == partitions })
	second := join(c, group, topic, topic, opts...)
	c.eventually("two members share", func() bool { return first.poll() == 2 && second.poll() == 2 })
	second.client.Close()
	c.eventually("the other one has all again", func() bool { return first.poll() == partitions })
	offsets := map[int32]kgo.EpochOffset{}
	for p := range int32(partitions) {
		offsets[p] = kgo.EpochOffset{Epoch: -1, Offset: each - 2}
	}
	var failed error
	first.client.CommitOffsetsSync(c.ctx, map[string]map[int32]kgo.EpochOffset{topic: offsets},
		func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, _ *kmsg.OffsetCommitResponse, err error) {
			failed = err
		})
	must(failed)
	first.client.Close()
	again := join(c, group, topic, topic, opts...)
	c.eventually("a member reads what is left", func() bool {
		again.poll()
		return len(again.values) >= 2*partitions
	})
	again.client.Close()
	values := again.values
	slices.Sort(values)
	same("left", values, []string{"32", "33", "34", "35", "36", "37", "38", "39"})
	c.eventually("the group is empty", func() bool { return state(group) == "Empty" })
	committed, err := c.admin.FetchOffsets(c.ctx, group)
	must(err)
	sum := 0
	committed.Each(func(o kadm.OffsetResponse) { sum += int(o.At) })
	same("committed", sum, partitions*(each-2))
	_, err = c.admin.DeleteGroup(c.ctx, group)
	must(err)
}

// member is a member of a group, with what it has now and all that it has read.
type member struct {
	c        *cluster
	client   *kgo.Client
	assigned atomic.Int32
	values   []string
}

// join makes a member that subscribes to a topic, or a pattern; it counts the partitions of the topic alone.
func join(c *cluster, group, topic, subscription string, opts ...kgo.Opt) *member {
	m := &member{c: c}
	changes := func(sign int32) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, changed map[string][]int32) {
			m.assigned.Add(sign * int32(len(changed[topic])))
		}
	}
	m.client = c.client(append(opts,
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(subscription),
		kgo.HeartbeatInterval(100*time.Millisecond), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.OnPartitionsAssigned(changes(1)), kgo.OnPartitionsRevoked(changes(-1)), kgo.OnPartitionsLost(changes(-1)),
	)...)
	return m
}

// poll reads for a moment, and returns how many partitions the member has.
func (m *member) poll() int {
	ctx, cancel := context.WithTimeout(m.c.ctx, 50*time.Millisecond)
	defer cancel()
	for _, r := range m.client.PollFetches(ctx).Records() {
		m.values = append(m.values, string(r.Value))
	}
	return int(m.assigned.Load())
}

func administration(c *cluster) {
	topic := c.topic(2)
	brokers, err := c.admin.ListBrokers(c.ctx)
	must(err)
	same("brokers", brokers.NodeIDs(), []int32{1, 2, 3})
	must2(c.admin.UpdatePartitions(c.ctx, 3, topic))
	seven := "7000"
	must2(c.admin.AlterTopicConfigs(c.ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &seven}}, topic))
	c.eventually("three partitions", func() bool {
		listed, err := c.admin.ListTopics(c.ctx, topic)
		must(err)
		return len(listed[topic].Partitions) == 3
	})
	c.eventually("a setting", func() bool {
		configs, err := c.admin.DescribeTopicConfigs(c.ctx, topic)
		must(err)
		found, err := configs.On(topic, nil)
		must(err)
		return slices.ContainsFunc(found.Configs, func(each kadm.Config) bool { return each.Key == "retention.ms" && *each.Value == seven })
	})
	must2(c.admin.DeleteTopic(c.ctx, topic))
	c.eventually("no topic", func() bool {
		listed, err := c.admin.ListTopics(c.ctx)
		must(err)
		return !listed.Has(topic)
	})
}

// transactionVersionOne lowers the feature, so that clients of this cluster use the older rules.
func transactionVersionOne(c *cluster) {
	updated, err := c.admin.UpdateFeatures(c.ctx, false, kadm.FeatureUpdate{
		Feature: "transaction.version", MaxVersionLevel: 1, UpgradeType: 2,
	})
	must(err)
	must(updated["transaction.version"].Err)
}

func must2[T any](found T, err error) T {
	must(err)
	return found
}
