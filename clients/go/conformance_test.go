package cleave

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// vectors are what Cleave's own rules made.
type vectors struct {
	Hashes []struct {
		Text        *string `json:"text"`
		Bytes       string  `json:"bytes"`
		Hash        uint32  `json:"hash"`
		SegmentHash uint32  `json:"segment_hash"`
		BucketHash  uint32  `json:"bucket_hash"`
	} `json:"hashes"`
	Buckets []struct {
		BucketSplits []int `json:"bucket_splits"`
		BucketHash   int   `json:"bucket_hash"`
		Bucket       int   `json:"bucket"`
	} `json:"buckets"`
	Layouts []struct {
		Document  string    `json:"document"`
		TopicID   int64     `json:"topic_id"`
		DataPlane string    `json:"data_plane"`
		Epoch     int64     `json:"epoch"`
		Segments  []Segment `json:"segments"`
		Routes    []struct {
			Key       string `json:"key"`
			SegmentID int64  `json:"segment_id"`
			Bucket    int    `json:"bucket"`
		} `json:"routes"`
	} `json:"layouts"`
	RefusedLayouts []string `json:"refused_layouts"`
	Streams        []struct {
		Text   string      `json:"text"`
		Events [][2]string `json:"events"`
	} `json:"streams"`
}

func load(t *testing.T) vectors {
	path := os.Getenv("CLIENT_VECTORS")
	if path == "" {
		path = "../../docs/reference/client-vectors.json"
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var found vectors
	if err := json.Unmarshal(text, &found); err != nil {
		t.Fatal(err)
	}
	if len(found.Hashes) == 0 || len(found.Buckets) == 0 || len(found.Layouts) == 0 || len(found.RefusedLayouts) == 0 ||
		len(found.Streams) == 0 {
		t.Fatal("vectors are missing")
	}
	return found
}

func TestHash(t *testing.T) {
	for _, vector := range load(t).Hashes {
		key, err := hex.DecodeString(vector.Bytes)
		if err != nil || (vector.Text != nil && *vector.Text != string(key)) {
			t.Fatalf("%v: %v", vector, err)
		}
		hash := Hash(key)
		if hash != vector.Hash || hash>>16 != vector.SegmentHash || hash&0xffff != vector.BucketHash {
			t.Errorf("%s: %08x, not %08x", vector.Bytes, hash, vector.Hash)
		}
	}
}

func TestBucketOf(t *testing.T) {
	for _, vector := range load(t).Buckets {
		if bucket := (Segment{BucketSplits: vector.BucketSplits}).BucketOf(vector.BucketHash); bucket != vector.Bucket {
			t.Errorf("%v: bucket %d", vector, bucket)
		}
	}
}

func TestLayouts(t *testing.T) {
	for _, vector := range load(t).Layouts {
		layout, err := ParseLayout([]byte(vector.Document))
		if err != nil {
			t.Fatal(err)
		}
		expected := Layout{vector.TopicID, vector.DataPlane, vector.Epoch, vector.Segments}
		if !reflect.DeepEqual(layout, expected) {
			t.Errorf("%v, not %v", layout, expected)
		}
		for _, route := range vector.Routes {
			hash := Hash([]byte(route.Key))
			segment := layout.SegmentOf(int(hash >> 16))
			if bucket := segment.BucketOf(int(hash & 0xffff)); segment.ID != route.SegmentID || bucket != route.Bucket {
				t.Errorf("%v: segment %d, bucket %d", route, segment.ID, bucket)
			}
		}
	}
}

func TestRefusedLayouts(t *testing.T) {
	for _, text := range load(t).RefusedLayouts {
		if _, err := ParseLayout([]byte(text)); err == nil {
			t.Errorf("%s was taken for a layout", text)
		}
	}
}

func TestEvents(t *testing.T) {
	for _, vector := range load(t).Streams {
		var found [][2]string
		readEvents(strings.NewReader(vector.Text), func() {}, func(name, data string) bool {
			found = append(found, [2]string{name, data})
			return true
		})
		if !reflect.DeepEqual(found, vector.Events) {
			t.Errorf("%v, not %v", found, vector.Events)
		}
	}
}

// failing is a standard client that opens no producer.
type failing struct{ pulsar.Client }

func (failing) CreateProducer(pulsar.ProducerOptions) (pulsar.Producer, error) {
	return nil, pulsar.ErrProducerClosed
}

// unstarted returns a producer whose tasks stay in the router's queue, and that asks no worker for a layout.
func unstarted(layout Layout) *Producer {
	return &Producer{client: failing{}, router: newQueue(), answers: newQueue(), lanes: map[laneID]*lane{}, layout: layout, isAsking: true}
}

func TestNewMessagesOfASegmentThatLeftWaitForThoseInDoubt(t *testing.T) {
	before := Layout{Segments: []Segment{{ID: 1, RangeEnd: 0xffff, BucketSplits: []int{0x8000}, BackingTopic: "one"}}}
	after := Layout{Epoch: 1, Segments: []Segment{{ID: 2, RangeEnd: 0xffff, BackingTopic: "two"}}}
	p := unstarted(before)
	send := func(number uint64, hash uint32) {
		p.place(&pending{number: number, hash: hash, message: &pulsar.ProducerMessage{Key: "key"}})
	}
	send(0, 0x0000)
	inDoubt := p.lanes[laneID{1, 0}]
	inDoubt.waiting, inDoubt.unanswered = nil, inDoubt.waiting

	p.take(after, false)
	send(1, 0xffff) // of the other bucket, which had no message before
	if other := p.lanes[laneID{1, 1}]; !other.isLeaving || other.isOpening {
		t.Error("a message is given to a segment that left the layout")
	}
	inDoubt.waiting, inDoubt.unanswered = inDoubt.unanswered, nil
	p.adoptWhenSettled()
	send(2, 0xffff)

	var numbers []uint64
	for _, sent := range p.lanes[laneID{2, 0}].waiting {
		numbers = append(numbers, sent.number)
	}
	if len(p.lanes) != 1 || !reflect.DeepEqual(numbers, []uint64{0, 1, 2}) {
		t.Errorf("%d lanes, and messages %v in the successor", len(p.lanes), numbers)
	}
}

// full is a standard producer that takes `room` messages, answers none of them, and has no room for others.
type full struct {
	pulsar.Producer
	room, attempts int
}

func (f *full) SendAsync(_ context.Context, message *pulsar.ProducerMessage, done func(pulsar.MessageID, *pulsar.ProducerMessage, error)) {
	f.attempts++
	if f.room--; f.room < 0 {
		done(nil, message, pulsar.ErrSendQueueIsFull)
	}
}

// tasksOf waits until the armed timers have put their tasks into the queue of the router, which does not run, and takes the tasks.
func tasksOf(p *Producer) (tasks []func()) {
	for until := time.Now().Add(20 * time.Second); len(tasks) == 0 && time.Now().Before(until); {
		time.Sleep(2 * retryPause)
		p.router.lock.Lock()
		tasks, p.router.tasks = p.router.tasks, nil
		p.router.lock.Unlock()
	}
	return tasks
}

func placeMany(p *Producer, count int) {
	for number := range count {
		p.place(&pending{number: uint64(number), message: &pulsar.ProducerMessage{Key: "key"}})
	}
}

func TestALaneWhoseQueueIsFullHasOnePendingAttempt(t *testing.T) {
	p := unstarted(Layout{Segments: []Segment{{ID: 1, RangeEnd: 0xffff, BackingTopic: "one"}}})
	producer := &full{room: 1}
	l := &lane{id: laneID{1, 0}, segment: p.layout.Segments[0], pause: retryPause, producer: producer}
	p.lanes[l.id] = l
	placeMany(p, 2000)
	for attempts := 2; attempts < 5; attempts++ { // the first message was taken
		tasks := tasksOf(p)
		if producer.attempts != attempts || len(tasks) != 1 {
			t.Fatalf("%d attempts, not %d, and %d timers", producer.attempts, attempts, len(tasks))
		}
		tasks[0]()
	}

	producer.room = 10
	p.open = map[*pending]chan struct{}{}
	p.room = make(chan struct{}, 1)
	p.room <- struct{}{}
	p.answered(l, l.unanswered[0], nil, nil)
	if len(l.unanswered) != 10 {
		t.Errorf("the standard producer owes no answer, and gets %d messages before the next attempt", len(l.unanswered))
	}
	if tasks := tasksOf(p); len(tasks) != 1 {
		t.Errorf("%d timers", len(tasks))
	}
}

func TestALaneThatCannotBeOpenedHasOnePendingAttempt(t *testing.T) {
	p := unstarted(Layout{Segments: []Segment{{ID: 1, RangeEnd: 0xffff, BackingTopic: "one"}}})
	placeMany(p, 1)
	opens := tasksOf(p)
	if len(opens) != 1 {
		t.Fatalf("%d attempts to open the lane", len(opens))
	}
	opens[0]()
	placeMany(p, 2000)
	if l := p.lanes[laneID{1, 0}]; l.isOpening {
		t.Error("a message opens the lane before the pause is over")
	}
	tasks := tasksOf(p)
	if len(tasks) != 1 {
		t.Fatalf("%d timers", len(tasks))
	}
	tasks[0]()
	if l := p.lanes[laneID{1, 0}]; !l.isOpening {
		t.Error("the lane is not opened after the pause")
	}
}

// late is a standard client that opens a producer when `goesOn` is closed. Closing the producer closes `closed`.
type late struct {
	pulsar.Client
	pulsar.Producer
	goesOn, closed chan struct{}
}

func (l late) CreateProducer(pulsar.ProducerOptions) (pulsar.Producer, error) {
	<-l.goesOn
	return l, nil
}

func (l late) Close() {
	close(l.closed)
}

func TestAStandardProducerThatIsOpenedAfterTheEndIsClosed(t *testing.T) {
	p := unstarted(Layout{Segments: []Segment{{ID: 1, RangeEnd: 0xffff, BackingTopic: "one"}}})
	client := late{goesOn: make(chan struct{}), closed: make(chan struct{})}
	p.client = client
	placeMany(p, 1)
	p.router.close()
	close(client.goesOn)
	select {
	case <-client.closed:
	case <-time.After(20 * time.Second):
		t.Error("the standard producer stays open")
	}
}

// asking returns a producer that routes by the layout of an epoch, and asks a worker, which answers with the layout of the epoch in the
// variable. The tasks stay in the router's queue.
func asking(t *testing.T, epoch int64) (*Producer, *atomic.Int64) {
	var present atomic.Int64
	worker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(layoutOf(present.Load()))
	}))
	t.Cleanup(worker.Close)
	p := unstarted(layoutOf(epoch))
	p.isAsking, p.http, p.context = false, worker.Client(), context.Background()
	p.options = Options{Workers: []string{worker.URL}, Token: func() string { return "token" }}
	return p, &present
}

func layoutOf(epoch int64) Layout {
	segment := Segment{ID: epoch, RangeEnd: 0xffff, BucketSplits: []int{}, BackingTopic: fmt.Sprintf("epoch-%d", epoch)}
	return Layout{DataPlane: "pulsar", Epoch: epoch, Segments: []Segment{segment}}
}

func TestALateAnswerWithAnOlderLayoutIsNotTaken(t *testing.T) {
	p, present := asking(t, 5)
	present.Store(5)
	p.askForLayout()
	late := tasksOf(p)
	p.take(layoutOf(6), false)
	present.Store(6)
	late[0]()
	if p.layout.Epoch != 6 || p.next != nil {
		t.Errorf("routes by epoch %d, then %v", p.layout.Epoch, p.next)
	}
	again := tasksOf(p)
	if len(again) != 1 {
		t.Fatalf("%d requests for the present layout", len(again))
	}
	again[0]()
	if p.layout.Epoch != 6 || p.next != nil || p.isAsking {
		t.Errorf("routes by epoch %d, then %v, and asks again: %v", p.layout.Epoch, p.next, p.isAsking)
	}
}

func TestAnOlderLayoutIsTakenIfItIsThePresentOne(t *testing.T) {
	p, present := asking(t, 6) // and then the database was restored from a backup
	for _, epoch := range []int64{5, 4} {
		present.Store(epoch)
		p.take(layoutOf(epoch), false)
		if p.layout.Epoch == epoch {
			t.Error("an older layout of the watch is taken without a question")
		}
		for _, answer := range tasksOf(p) {
			answer()
		}
		if p.layout.Epoch != epoch {
			t.Errorf("routes by epoch %d, not %d", p.layout.Epoch, epoch)
		}
	}
}

func TestAnotherLayoutOfTheSameEpochIsTakenIfItIsThePresentOne(t *testing.T) {
	p, present := asking(t, 6)
	p.layout.Segments[0].ID = 60 // of the time that the restored database lost
	present.Store(6)
	p.take(layoutOf(6), false)
	if p.layout.Segments[0].ID != 60 {
		t.Error("a layout of the same epoch is taken without a question")
	}
	for _, answer := range tasksOf(p) {
		answer()
	}
	if p.layout.Segments[0].ID != 6 {
		t.Error("the present layout is not taken")
	}
}

// withFailing adds a worker that sends a useless answer. The next two requests are sent to this worker.
func withFailing(t *testing.T, p *Producer, status int, body string) {
	worker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(worker.Close)
	if status == 0 {
		worker.Close()
	}
	p.options.Workers = append(p.options.Workers, worker.URL, worker.URL) // the turn begins with the second worker
}

// runTasks runs the tasks of the router until the producer asks no worker for the layout.
func runTasks(p *Producer) {
	for rounds := 0; p.isAsking && rounds < 10; rounds++ {
		for _, task := range tasksOf(p) {
			task()
		}
	}
}

func TestAnOlderLayoutInDoubtIsAskedForAgainIfARequestFails(t *testing.T) {
	for name, answer := range map[string]struct {
		status int
		body   string
	}{"away": {0, ""}, "not ready": {503, "{}"}, "unreadable": {200, "no layout"}} {
		for _, isAsking := range []bool{false, true} { // when the watch sends the older layout
			t.Run(fmt.Sprintf("%s, asking %v", name, isAsking), func(t *testing.T) {
				t.Parallel()
				p, present := asking(t, 6)
				withFailing(t, p, answer.status, answer.body)
				present.Store(5)
				if isAsking {
					p.askForLayout()
				}
				p.take(layoutOf(5), false)
				runTasks(p)
				if p.layout.Epoch != 5 || p.isAsking || p.isInDoubt {
					t.Errorf("routes by epoch %d, asks %v, in doubt %v", p.layout.Epoch, p.isAsking, p.isInDoubt)
				}
			})
		}
	}
}

func TestAnOlderLayoutThatComesDuringARequestIsAskedForAgain(t *testing.T) {
	p, present := asking(t, 6)
	present.Store(6)
	p.askForLayout()
	answers := tasksOf(p) // of before the restore
	present.Store(5)
	p.take(layoutOf(5), false)
	answers[0]()
	runTasks(p)
	if p.layout.Epoch != 5 || p.isAsking || p.isInDoubt {
		t.Errorf("routes by epoch %d, asks %v, in doubt %v", p.layout.Epoch, p.isAsking, p.isInDoubt)
	}
}

func TestAFailedRequestIsNotRepeatedWithoutNeed(t *testing.T) {
	p, present := asking(t, 6)
	withFailing(t, p, 503, "{}")
	p.askForLayout()
	tasksOf(p)[0]()
	if p.isAsking {
		t.Error("a request is repeated although no layout is in doubt")
	}

	p.turn = 0
	present.Store(5)
	p.take(layoutOf(5), false)
	tasksOf(p)[0]()
	p.endAndClose(ErrTopicDeleted)
	tasksOf(p)[0]() // the timer
	if p.isAsking {
		t.Error("a producer whose topic was deleted asks for the layout")
	}
}

// recording is a standard client that hands over the options of the producers that it is asked for, and opens none.
type recording struct {
	pulsar.Client
	options chan pulsar.ProducerOptions
}

func (r recording) CreateProducer(options pulsar.ProducerOptions) (pulsar.Producer, error) {
	r.options <- options
	return nil, pulsar.ErrProducerClosed
}

func TestSettingsThatContradictLanesAreReplaced(t *testing.T) {
	client := recording{options: make(chan pulsar.ProducerOptions)}
	p := unstarted(Layout{Segments: []Segment{{ID: 1, RangeEnd: 0xffff, BucketSplits: []int{0x8000}, BackingTopic: "one"}}})
	p.client = client
	p.options.Settings = pulsar.ProducerOptions{
		Name: "checkout", ProducerAccessMode: pulsar.ProducerAccessModeExclusive, DisableBatching: true, EnableChunking: true,
		MessageRouter: func(*pulsar.ProducerMessage, pulsar.TopicMetadata) int { return -1 }, MaxPendingMessages: 7,
	}
	names := map[string]bool{}
	for _, hash := range []uint32{0x0000, 0xffff} { // two lanes of one topic
		p.place(&pending{hash: hash, message: &pulsar.ProducerMessage{Key: "key"}})
		options := <-client.options
		names[options.Name] = true
		if !strings.HasPrefix(options.Name, "checkout-") || options.Topic != "one" || options.MaxPendingMessages != 7 ||
			options.ProducerAccessMode != pulsar.ProducerAccessModeShared || options.EnableChunking || options.MessageRouter != nil {
			t.Errorf("%+v", options)
		}
	}
	if len(names) != 2 {
		t.Errorf("the two producers of a topic share a name: %v", names)
	}
	p.options.Settings.Name = ""
	if name := p.settings("one").Name; name != "" {
		t.Errorf("the broker does not choose the name, which is %q", name)
	}
}

func TestSettingsThatTheStandardClientRefusesAreRefusedAtOnce(t *testing.T) {
	_, err := NewProducer(context.Background(), failing{}, Options{
		Workers: []string{"http://127.0.0.1:1"}, Token: func() string { return "token" }, Topic: "topic://acme/shop/orders",
		Settings: pulsar.ProducerOptions{Encryption: &pulsar.ProducerEncryptionInfo{Keys: []string{"key"}}},
	})
	if err == nil || !strings.Contains(err.Error(), "KeyReader") {
		t.Error(err)
	}
	for _, text := range []string{
		"server error: IncompatibleSchema: org.apache.pulsar...: unable to read schema",
		"encryptedPayload exceeds MaxMessageSize, size: 5242931, MaxMessageSize: 5242880", // with its key and properties
		"encryption of message failed, ProducerCryptoFailureAction is set to Fail. Error: no key",
	} {
		if !isFinal(errors.New(text)) {
			t.Errorf("tried again for ever: %s", text)
		}
	}
}

func TestRefusedMessages(t *testing.T) {
	transaction := struct{ pulsar.Transaction }{}
	for part, message := range map[string]*pulsar.ProducerMessage{
		"UTF-8":        {Key: "order-\xff"},
		"ordering key": {Key: "order-1", OrderingKey: "customer-7"},
		"DeliverAfter": {Key: "order-1", DeliverAfter: time.Second},
		"DeliverAt":    {Key: "order-1", DeliverAt: time.Now()},
		"transaction":  {Key: "order-1", Transaction: transaction},
		"cleave.key":   {Key: "order-1", Properties: map[string]string{"color": "red", "cleave.key": "base64"}},
	} {
		answers := 0
		unstarted(Layout{}).SendAsync(context.Background(), message, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			if answers++; err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v", part, err)
			}
		})
		if answers != 1 {
			t.Errorf("%s: %d answers", part, answers)
		}
	}
}

func TestFlushWaitsForCallbacks(t *testing.T) {
	p := unstarted(Layout{})
	ended := false
	sent := &pending{done: func(pulsar.MessageID, *pulsar.ProducerMessage, error) { ended = true }}
	p.open, p.room = map[*pending]chan struct{}{sent: make(chan struct{})}, make(chan struct{}, 1)
	p.room <- struct{}{}
	p.answer(sent, nil, nil)
	atOnce, cancel := context.WithCancel(context.Background())
	cancel()
	if err := p.Flush(atOnce); err == nil {
		t.Error("Flush does not wait for a callback")
	}
	p.answers.close()
	p.answers.run()
	if err := p.Flush(atOnce); err != nil || !ended {
		t.Errorf("%v, the callback has ended: %v", err, ended)
	}
}
