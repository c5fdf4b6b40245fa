// Reads all segments of a topic by a pattern until SIGTERM, and writes down what it was handed. It knows nothing of Cleave.
//
// Arguments: SERVICE_URL TOPICS_PATTERN NAME HISTORY SUBSCRIPTION TYPE individual|cumulative WORK_MS.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"cleave/stock/history"
)

var types = map[string]pulsar.SubscriptionType{"Failover": pulsar.Failover, "Exclusive": pulsar.Exclusive}

func main() {
	given := os.Args[1:]
	work, err := time.ParseDuration(given[7] + "ms")
	history.Demand(err)
	client, err := pulsar.NewClient(pulsar.ClientOptions{URL: given[0]})
	history.Demand(err)
	attachments := &attachments{process: history.Monotonic(), periods: map[string]int{}}
	file, ending := history.Open(given[3]), history.UntilSIGTERM()
	consumer, err := subscribe(ending, client, pulsar.ConsumerOptions{
		TopicsPattern:               given[1],
		AutoDiscoveryPeriod:         time.Second,
		SubscriptionName:            given[4],
		Type:                        types[given[5]],
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		Name:                        given[2],
		ReceiverQueueSize:           100,
		EventListener:               attachments,
		AckWithResponse:             true,
	})
	history.Demand(err)
	acknowledge := consumer.Ack
	if given[6] == "cumulative" {
		acknowledge = consumer.AckCumulative
	}
	for ending.Err() == nil {
		message, err := consumer.Receive(ending)
		if err != nil {
			break
		}
		topic := message.Topic()
		where := []string{given[2], topic[strings.LastIndex(topic, "-")+1:], "", attachments.of(topic)}
		file.Note("delivered", message.Payload(), message.Key(), where...)
		file.Note("begun", message.Payload(), message.Key(), where...)
		time.Sleep(work)
		file.Note("ended", message.Payload(), message.Key(), where...)
		if acknowledge(message) == nil { // otherwise the message comes again
			file.Note("acknowledged", message.Payload(), message.Key(), where...)
		}
	}
	consumer.Close()
	client.Close()
}

// subscribe tries again after a failure, until the program shall end: a broker that dies fails the subscriptions to all segments.
func subscribe(ending context.Context, client pulsar.Client, options pulsar.ConsumerOptions) (pulsar.Consumer, error) {
	for {
		consumer, err := client.Subscribe(options)
		if err == nil || ending.Err() != nil {
			return consumer, err
		}
		fmt.Fprintln(os.Stderr, "not subscribed, trying again:", err)
		time.Sleep(time.Second)
	}
}

// attachments names the periods in which this consumer is the active one of a segment.
type attachments struct {
	process int64
	lock    sync.Mutex
	periods map[string]int
}

func (a *attachments) of(topic string) string {
	a.lock.Lock()
	defer a.lock.Unlock()
	return fmt.Sprintf("%x.%d", a.process, a.periods[topic])
}

func (a *attachments) BecameActive(_ pulsar.Consumer, topic string, _ int32) {
	a.lock.Lock()
	defer a.lock.Unlock()
	a.periods[topic]++
}

func (a *attachments) BecameInactive(pulsar.Consumer, string, int32) {}
