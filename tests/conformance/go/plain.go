package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

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

// groups lets members share a topic, and a later member go on behind what was committed.
func groups(c *cluster) {
	const partitions, each = 4, 10
	topic, group := c.topic(partitions), c.unique("group")
	producer := c.client(kgo.DefaultProduceTopic(topic))
	for i := range partitions * each {
		must(producer.ProduceSync(c.ctx, &kgo.Record{Partition: int32(i % partitions), Value: fmt.Appendf(nil, "%02d", i)}).FirstErr())
	}
	producer.Close()
	for _, balancer := range []kgo.GroupBalancer{kgo.CooperativeStickyBalancer(), kgo.RangeBalancer()} {
		first := join(c, group, topic, balancer)
		c.eventually("one member has all partitions", func() bool { return first.poll() == partitions })
		second := join(c, group, topic, balancer)
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
		again := join(c, group, topic, balancer)
		c.eventually("a member reads what is left", func() bool {
			again.poll()
			return len(again.values) >= 2*partitions
		})
		again.client.Close()
		values := again.values
		slices.Sort(values)
		same("left", values, []string{"32", "33", "34", "35", "36", "37", "38", "39"})
		c.eventually("the group is empty", func() bool {
			described, err := c.admin.DescribeGroups(c.ctx, group)
			must(err)
			return described[group].State == "Empty"
		})
	}
	lag, err := c.admin.Lag(c.ctx, group)
	must(err)
	same("lag", lag[group].Lag.Total(), 2*partitions)
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

func join(c *cluster, group, topic string, balancer kgo.GroupBalancer) *member {
	m := &member{c: c}
	changes := func(sign int32) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, changed map[string][]int32) {
			m.assigned.Add(sign * int32(len(changed[topic])))
		}
	}
	m.client = c.client(
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.Balancers(balancer),
		kgo.HeartbeatInterval(100*time.Millisecond), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.OnPartitionsAssigned(changes(1)), kgo.OnPartitionsRevoked(changes(-1)), kgo.OnPartitionsLost(changes(-1)),
	)
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
