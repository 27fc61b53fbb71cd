package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const recordBytes = 100

// transactionsRate prints the commits a second of several producers together. Each has its own transactional
// id and partition, and writes one record of 100 B in a transaction. Their first transactions do not count.
func (c *cluster) transactionsRate(topic string, producers, transactions int) {
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	each := transactions / producers
	for number := range producers {
		ready.Add(1)
		done.Go(func() {
			cl := c.transactional(
				fmt.Sprintf("%s-%d", topic, number),
				kgo.ProducerLinger(0),
				kgo.ProducerBatchCompression(kgo.NoCompression()),
			)
			defer cl.Close()
			record := kgo.Record{Topic: topic, Partition: int32(number), Value: make([]byte, recordBytes)}
			c.commitOne(cl, record)
			ready.Done()
			<-start
			for range each {
				c.commitOne(cl, record)
			}
		})
	}
	ready.Wait()
	began := time.Now()
	close(start)
	done.Wait()
	fmt.Printf("%.1f\n", float64(each*producers)/time.Since(began).Seconds())
}

func (c *cluster) commitOne(cl *kgo.Client, record kgo.Record) {
	must(cl.BeginTransaction())
	must(cl.ProduceSync(c.ctx, &record).FirstErr())
	c.end(cl, commit)
}
