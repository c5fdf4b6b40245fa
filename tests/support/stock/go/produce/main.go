// Sends numbered messages of random keys until SIGTERM, and writes down what was stored.
//
// Arguments: SERVICE_URL TOPIC NAME HISTORY WORKERS TOKEN KEYS MESSAGES_A_SECOND.
package main

import (
	"context"
	"fmt"
	"hash/crc32"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"cleave"
	"cleave/stock/history"
)

func main() {
	given := os.Args[1:]
	keys, err := strconv.Atoi(given[6])
	history.Demand(err)
	rate, err := strconv.Atoi(given[7])
	history.Demand(err)
	client, err := pulsar.NewClient(pulsar.ClientOptions{URL: given[0]})
	history.Demand(err)
	options := cleave.Options{Workers: strings.Split(given[4], ","), Token: func() string { return given[5] }, Topic: given[1]}
	producer, err := cleave.NewProducer(context.Background(), client, options)
	history.Demand(err)
	file, ending := history.Open(given[3]), history.UntilSIGTERM()
	random := rand.New(rand.NewSource(int64(crc32.ChecksumIEEE([]byte(given[2])))))
	numbers := make([]int, keys)
	began, sent := time.Now(), 0
	for ending.Err() == nil {
		for due := int(time.Since(began).Milliseconds()) * rate / 1000; sent < due; sent++ {
			number := random.Intn(keys)
			message := &pulsar.ProducerMessage{
				Key: fmt.Sprintf("key-%d", number), Payload: fmt.Appendf(nil, "%s %d", given[2], numbers[number]),
			}
			numbers[number]++
			producer.SendAsync(context.Background(), message, func(_ pulsar.MessageID, stored *pulsar.ProducerMessage, err error) {
				history.Demand(err)
				file.Note("sent", stored.Payload, stored.Key)
			})
		}
		time.Sleep(10 * time.Millisecond)
	}
	history.Demand(producer.Flush(context.Background()))
	producer.Close()
	client.Close()
}
