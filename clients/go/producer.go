// Package cleave sends keyed messages to a topic of Cleave that is on Pulsar, and keeps the order of each key across splits and merges.
//
// The producer reads the topic's layout from a Cleave worker and holds a watch open for later layouts. It hashes each key as Cleave
// does and keeps one standard Pulsar producer for each entry bucket of a segment, so that a batch holds messages of one bucket. When a
// segment is sealed, the producer waits for the layout with the segment's successors. It then resends, in the order of the calls,
// every message of the segment that was not acknowledged, before any later message of the same keys.
//
// Delivery is at least once: a message whose acknowledgement was lost is stored again in the successor. A message is retried until it
// is stored, refused by the broker for good (too large, not authorized, another schema), or the producer is closed.
//
// Each segment has several standard producers, and a message may be sent more than once. Options of the standard client that do not
// allow this are replaced (see Options.Settings); messages with an ordering key, a delivery time or a transaction are refused.
package cleave

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net/http"
	"net/url"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/apache/pulsar-client-go/pulsar"
)

const (
	callTimeout  = 10 * time.Second
	closeTimeout = 10 * time.Second
	// Pause before a failed open, a full queue or a failed HTTP call is tried again.
	retryPause    = 100 * time.Millisecond
	maxRetryPause = 2 * time.Second
	// Time that a standard producer has to answer after its segment left the layout. The standard client does not answer at all when
	// the broker says that the topic was terminated.
	grace = 500 * time.Millisecond
	// A standard producer that answers nothing for this time is opened again.
	muteTime = 10 * time.Second
	// A watch that was silent for this time is opened again; workers send heartbeats more often.
	silentTime = 30 * time.Second
	// Time after which a segment that takes no messages is reported to a worker, and the pause between reports.
	suspectAfter = time.Second
	suspectEvery = 5 * time.Second

	defaultMaxPending = 10_000
	withoutKey        = -1 // the bucket of messages without a key
	// Names of properties that begin with this prefix are Cleave's own.
	reservedPrefix = "cleave."
)

var (
	// ErrClosed is the error of messages that were not stored when the producer was closed.
	ErrClosed = errors.New("the producer is closed; open another one")
	// ErrTopicDeleted is the error of messages whose topic was deleted.
	ErrTopicDeleted = errors.New("the topic was deleted; open another producer if it was created again")
	errMute         = fmt.Errorf("no answer within %s", muteTime)
)

// Options are the settings of a producer.
type Options struct {
	// Workers are addresses of Cleave workers, such as http://cleave:8470. Any of them answers.
	Workers []string
	// Token returns the bearer token (`cleave token`). It is called for each request, so it may return a fresh token.
	Token func() string
	// Topic is the topic, as topic://tenant/namespace/name.
	Topic string
	// MaxPending is the number of messages without an answer at which Send and SendAsync block. Default: 10,000.
	MaxPending int
	// Settings are options of each standard producer, for compression, batching or encryption. Topic, SendTimeout,
	// DisableBlockIfQueueFull, ProducerAccessMode (shared), EnableChunking (false) and MessageRouter are replaced. Each standard
	// producer gets a name of its own, which begins with Name. Interceptors must not change Key or set OrderingKey.
	Settings pulsar.ProducerOptions
	// HTTPClient sends the requests to workers. It must not limit the time of a whole request. Default: a client of its own.
	HTTPClient *http.Client
}

// problem returns the reason why no producer can have these options, or nil.
func (o Options) problem() error {
	if len(o.Workers) == 0 || o.Token == nil || o.MaxPending < 0 {
		return errors.New("give at least one worker, a function that returns the token, and no negative number of messages")
	}
	if encryption := o.Settings.Encryption; encryption != nil && len(encryption.Keys) > 0 && encryption.KeyReader == nil {
		return errors.New("Settings.Encryption has keys and no KeyReader; give both")
	}
	return nil
}

// Segment is an ACTIVE segment: an inclusive range of segment hashes, the first bucket hashes of buckets 1, 2, ..., and a Pulsar topic.
type Segment struct {
	ID           int64  `json:"segment_id"`
	RangeStart   int    `json:"range_start"`
	RangeEnd     int    `json:"range_end"`
	BucketSplits []int  `json:"bucket_splits"`
	BackingTopic string `json:"backing_topic"`
}

// BucketOf returns the index of the entry bucket that holds a bucket hash.
func (s Segment) BucketOf(bucketHash int) int {
	return sort.SearchInts(s.BucketSplits, bucketHash+1)
}

func (s Segment) equals(other Segment) bool {
	return s.ID == other.ID && s.RangeStart == other.RangeStart && s.RangeEnd == other.RangeEnd &&
		s.BackingTopic == other.BackingTopic && slices.Equal(s.BucketSplits, other.BucketSplits)
}

// Layout is a topic's layout at one epoch. The segments tile the hashes 0 to 65535 and are sorted by range.
type Layout struct {
	TopicID   int64     `json:"topic_id"`
	DataPlane string    `json:"data_plane"`
	Epoch     int64     `json:"epoch"`
	Segments  []Segment `json:"segments"`
}

// ParseLayout parses a layout document. It returns an error for any other text.
func ParseLayout(document []byte) (Layout, error) {
	var layout Layout
	if err := json.Unmarshal(document, &layout); err != nil {
		return layout, fmt.Errorf("no layout document: %w", err)
	}
	slices.SortFunc(layout.Segments, func(a, b Segment) int { return a.RangeStart - b.RangeStart })
	next := 0
	for _, segment := range layout.Segments {
		if segment.RangeStart != next || segment.RangeEnd < next || segment.BackingTopic == "" {
			return layout, fmt.Errorf("the segments of the layout do not tile 0 to 65535: %s", document)
		}
		next = segment.RangeEnd + 1
	}
	if next != 65_536 {
		return layout, fmt.Errorf("the segments of the layout do not tile 0 to 65535: %s", document)
	}
	return layout, nil
}

// SegmentOf returns the segment that owns a segment hash.
func (l Layout) SegmentOf(segmentHash int) Segment {
	after := sort.Search(len(l.Segments), func(i int) bool { return l.Segments[i].RangeStart > segmentHash })
	return l.Segments[after-1]
}

func (l Layout) has(segment Segment) bool {
	return slices.ContainsFunc(l.Segments, segment.equals)
}

func (l Layout) equals(other Layout) bool {
	return l.TopicID == other.TopicID && l.Epoch == other.Epoch && slices.EqualFunc(l.Segments, other.Segments, Segment.equals)
}

// Hash returns the Murmur3 hash (x86, 32 bits, seed 0). The upper half is the segment hash, the lower half the bucket hash.
func Hash(key []byte) uint32 {
	var hash, word uint32
	tail := len(key) &^ 3
	for i := 0; i < tail; i += 4 {
		word = uint32(key[i]) | uint32(key[i+1])<<8 | uint32(key[i+2])<<16 | uint32(key[i+3])<<24
		hash = bits.RotateLeft32(hash^mixed(word), 13)*5 + 0xe6546b64
	}
	word = 0
	for i := len(key) - 1; i >= tail; i-- {
		word = word<<8 | uint32(key[i])
	}
	hash ^= mixed(word) ^ uint32(len(key))
	hash = (hash ^ hash>>16) * 0x85ebca6b
	hash = (hash ^ hash>>13) * 0xc2b2ae35
	return hash ^ hash>>16
}

func mixed(word uint32) uint32 {
	return bits.RotateLeft32(word*0xcc9e2d51, 15) * 0x1b873593
}

// Callback gets the answer to a message. One goroutine of the producer runs the callbacks, one after the other. A callback must be fast,
// because MaxPending does not count messages whose callback waits. It may call SendAsync, but not Send, Flush or Close, which would wait
// for the goroutine itself.
type Callback func(id pulsar.MessageID, message *pulsar.ProducerMessage, err error)

// pending is a message that the application sent, until its answer is known.
type pending struct {
	number  uint64
	hash    uint32
	message *pulsar.ProducerMessage
	done    Callback
}

// A laneID names an entry bucket of a segment. The layout tells whether the segment's other fields are still the same.
type laneID struct {
	segment int64
	bucket  int
}

// A lane is the messages of one entry bucket and its standard producer. Only the router uses it.
type lane struct {
	id      laneID
	segment Segment
	// waiting was not given to the standard producer yet, unanswered was. Both are in the order of the calls.
	waiting, unanswered []*pending
	producer            pulsar.Producer
	isOpening           bool
	isFailing           bool // the standard producer is being closed; what it did not store goes back to waiting
	isPausing           bool // a timer is armed that tries the lane again
	isLeaving           bool // the segment left the layout
	// progressAt is when the standard producer last answered, or was given a message while it owed no answer.
	progressAt, failingSince, reportedAt time.Time
	pause                                time.Duration
}

// Producer sends messages to one topic. It is safe for concurrent use. Messages of one key keep their order if one goroutine sends
// them. All state belongs to one goroutine of the producer, the router.
type Producer struct {
	client  pulsar.Client
	options Options
	path    string
	http    *http.Client
	context context.Context
	cancel  context.CancelFunc
	room    chan struct{}
	router  *queue
	answers *queue // runs the application's callbacks, so that they never run in the router
	running sync.WaitGroup
	// Messages whose callback has not ended, counted for Flush.
	lock    sync.Mutex
	open    map[*pending]chan struct{}
	refused bool // no message is taken any more

	// Only the router uses these.
	lanes    map[laneID]*lane
	layout   Layout
	next     *Layout // the newest layout, while messages of segments that it lacks are still in doubt
	numbers  uint64
	turn     int
	isAsking bool // a request for the layout is in progress, or its repetition is due after a pause
	// isInDoubt is true if an older layout came after the last request was sent, or if the request about an older layout failed.
	isInDoubt bool
	ending    error
}

// NewProducer opens a producer. It waits until a worker has sent the layout. The caller closes the client after the producer.
func NewProducer(ctx context.Context, client pulsar.Client, options Options) (*Producer, error) {
	path, err := pathOf(options.Topic)
	if err != nil {
		return nil, err
	}
	if err := options.problem(); err != nil {
		return nil, err
	}
	if options.MaxPending == 0 {
		options.MaxPending = defaultMaxPending
	}
	p := &Producer{
		client: client, options: options, path: path, http: options.HTTPClient,
		room: make(chan struct{}, options.MaxPending), router: newQueue(), answers: newQueue(),
		open: map[*pending]chan struct{}{}, lanes: map[laneID]*lane{},
	}
	if p.http == nil {
		p.http = &http.Client{}
	}
	if p.layout, err = p.firstLayout(ctx); err != nil {
		return nil, err
	}
	p.context, p.cancel = context.WithCancel(context.Background())
	for _, run := range []func(){p.router.run, p.answers.run, p.watch, p.tick} {
		p.running.Add(1)
		go func() {
			defer p.running.Done()
			run()
		}()
	}
	return p, nil
}

// Send sends a message and waits until it is stored.
func (p *Producer) Send(ctx context.Context, message *pulsar.ProducerMessage) (pulsar.MessageID, error) {
	type answer struct {
		id  pulsar.MessageID
		err error
	}
	answered := make(chan answer, 1)
	p.SendAsync(ctx, message, func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { answered <- answer{id, err} })
	select {
	case found := <-answered:
		return found.id, found.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// SendAsync sends a message. It blocks only while MaxPending messages have no answer. The message's Key decides the segment and the
// order; messages without a key take turns over the segments. The message must not be changed until the answer. Messages with a key
// that is no UTF-8, an OrderingKey, DeliverAfter or DeliverAt, a Transaction or a property whose name begins with "cleave." are refused.
func (p *Producer) SendAsync(ctx context.Context, message *pulsar.ProducerMessage, done Callback) {
	if err := refusalOf(message); err != nil {
		done(nil, message, err)
		return
	}
	select {
	case p.room <- struct{}{}:
	case <-ctx.Done():
		done(nil, message, ctx.Err())
		return
	case <-p.context.Done():
		done(nil, message, ErrClosed)
		return
	}
	sent := &pending{hash: Hash([]byte(message.Key)), message: message, done: done}
	p.lock.Lock()
	refused := p.refused
	if !refused {
		p.open[sent] = make(chan struct{})
		p.router.put(func() { // under the lock, so that Close does not come in between
			sent.number = p.numbers
			p.numbers++
			p.place(sent)
		})
	}
	p.lock.Unlock()
	if refused {
		<-p.room
		done(nil, message, ErrClosed)
	}
}

// refusalOf returns the reason why a message cannot be sent, or nil.
func refusalOf(message *pulsar.ProducerMessage) error {
	switch {
	case !utf8.ValidString(message.Key):
		return fmt.Errorf("key %q is no UTF-8; correct the key", message.Key)
	case message.OrderingKey != "":
		// The broker would choose the bucket's reader by it.
		return fmt.Errorf("a message has the ordering key %q, but its bucket follows from Key; set only Key", message.OrderingKey)
	case message.DeliverAfter != 0 || !message.DeliverAt.IsZero():
		// It is delivered after later messages of its key, and a sealed segment cannot end before. The standard client does not report
		// that a broker refuses the delay.
		return errors.New("a message has a delivery time, but messages are delivered in the order of their key; set no DeliverAfter or DeliverAt")
	case message.Transaction != nil:
		return errors.New("a message is part of a transaction, which may end before the message is sent again; send it without one")
	}
	for name := range message.Properties {
		if strings.HasPrefix(name, reservedPrefix) {
			return fmt.Errorf("property %q begins with %q; choose another name", name, reservedPrefix)
		}
	}
	return nil
}

// Flush waits until the callback of every message sent before this call has ended.
func (p *Producer) Flush(ctx context.Context) error {
	p.lock.Lock()
	waited := make([]chan struct{}, 0, len(p.open))
	for _, answered := range p.open {
		waited = append(waited, answered)
	}
	p.lock.Unlock()
	for _, answered := range waited {
		select {
		case <-answered:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Close closes the producer. Messages without an answer fail; call Flush first to have them stored.
func (p *Producer) Close() {
	p.lock.Lock()
	again := p.refused
	p.refused = true
	p.lock.Unlock()
	if again {
		return
	}
	p.cancel()
	closed := make(chan []pulsar.Producer)
	p.router.put(func() { closed <- p.end(ErrClosed) })
	var closing sync.WaitGroup
	for _, producer := range <-closed {
		closing.Add(1)
		go func() {
			defer closing.Done()
			closeProducer(producer)
		}()
	}
	closing.Wait()
	p.router.close()
	p.answers.close()
	p.running.Wait()
}

// The router: which lane a message goes to, and what its standard producer made of it.

func (p *Producer) place(sent *pending) {
	if p.ending != nil {
		p.answer(sent, nil, p.ending)
		return
	}
	segment, bucket := Segment{}, withoutKey
	if sent.message.Key == "" {
		segment = p.layout.Segments[p.turn%len(p.layout.Segments)]
		p.turn++
	} else {
		segment = p.layout.SegmentOf(int(sent.hash >> 16))
		bucket = segment.BucketOf(int(sent.hash & 0xffff))
	}
	id := laneID{segment.ID, bucket}
	found, ok := p.lanes[id]
	if !ok {
		// A lane of a segment that the next layout lacks takes no messages: they would stay behind when the layout is adopted.
		found = &lane{id: id, segment: segment, pause: retryPause, isLeaving: p.next != nil && !p.next.has(segment)}
		p.lanes[id] = found
	}
	found.waiting = append(found.waiting, sent)
	p.pump(found)
}

// pump gives the waiting messages of a lane to its standard producer, which is opened first if there is none.
func (p *Producer) pump(l *lane) {
	if l.isLeaving || l.isFailing || l.isOpening || l.isPausing || p.ending != nil {
		return
	}
	if l.producer == nil {
		l.isOpening = true
		options := p.settings(l.segment.BackingTopic)
		go func() {
			producer, err := p.client.CreateProducer(options)
			if !p.router.put(func() { p.opened(l, producer, err) }) && err == nil { // closed meanwhile
				closeProducer(producer)
			}
		}()
		return
	}
	p.fill(l)
}

// settings returns the options of a standard producer: those of the application, without the options that lanes do not allow.
func (p *Producer) settings(topic string) pulsar.ProducerOptions {
	options := p.options.Settings
	options.Topic, options.SendTimeout, options.DisableBlockIfQueueFull = topic, -1, true
	// Several lanes, and several processes, produce to one topic. The broker accepts each name once.
	if options.Name != "" {
		options.Name += "-" + rand.Text()
	}
	options.ProducerAccessMode = pulsar.ProducerAccessModeShared
	// A seal may cut a message of several chunks. The segment would then end with chunks that no consumer receives.
	options.EnableChunking = false
	options.MessageRouter = nil // chooses a partition, and segments have none
	return options
}

// pumpAfter calls pump after a pause. Each lane has at most one such timer, however many messages are placed meanwhile.
func (p *Producer) pumpAfter(l *lane, pause time.Duration) {
	if l.isPausing {
		return
	}
	l.isPausing = true
	p.later(pause, func() {
		l.isPausing = false
		p.pump(l)
	})
}

// fill gives waiting messages to the standard producer of a lane until the producer has no room.
func (p *Producer) fill(l *lane) {
	for len(l.waiting) > 0 {
		sent := l.waiting[0]
		if !p.give(l, sent) {
			p.pumpAfter(l, retryPause) // the messages behind it must not be sent first
			return
		}
		if len(l.unanswered) == 0 {
			l.progressAt = time.Now()
		}
		l.waiting, l.unanswered = l.waiting[1:], append(l.unanswered, sent)
	}
}

// give hands a message to the standard producer. It returns false if the producer has no room for it.
func (p *Producer) give(l *lane, sent *pending) bool {
	var once sync.Once
	isFull := false
	answered := func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
		once.Do(func() {
			if errors.Is(err, pulsar.ErrSendQueueIsFull) || errors.Is(err, pulsar.ErrMemoryBufferIsFull) {
				isFull = true // the standard producer says so before SendAsync returns
				return
			}
			p.router.put(func() { p.answered(l, sent, id, err) })
		})
	}
	defer func() { // the standard producer writes to a channel that it may have closed a moment ago
		if recover() != nil {
			answered(nil, nil, pulsar.ErrProducerClosed)
		}
	}()
	message := *sent.message
	l.producer.SendAsync(context.Background(), &message, answered)
	return !isFull
}

func (p *Producer) opened(l *lane, producer pulsar.Producer, err error) {
	l.isOpening = false
	switch {
	case l.isLeaving || p.ending != nil:
		if err == nil {
			go closeProducer(producer)
		}
	case err == nil:
		l.producer = producer
		p.pump(l)
	case isFinal(err):
		for _, sent := range l.waiting {
			p.answer(sent, nil, err)
		}
		l.waiting = nil
	default:
		p.retry(l, err)
	}
}

func (p *Producer) answered(l *lane, sent *pending, id pulsar.MessageID, err error) {
	place := slices.Index(l.unanswered, sent)
	if place < 0 {
		return // the lane was settled without this answer
	}
	if err != nil && !isFinal(err) {
		p.close(l, err)
		return
	}
	l.unanswered = slices.Delete(l.unanswered, place, place+1)
	l.progressAt = time.Now()
	p.answer(sent, id, err)
	if err == nil {
		l.failingSince, l.pause = time.Time{}, retryPause
	}
	if len(l.unanswered) == 0 && l.producer != nil && !l.isLeaving {
		p.fill(l) // the queue of the standard producer is empty, so a pause would only delay the waiting messages
	}
	p.adoptWhenSettled()
}

// close closes the standard producer of a lane. Then every message without an answer counts as not stored.
func (p *Producer) close(l *lane, err error) {
	if l.isFailing {
		return
	}
	l.isFailing = true
	producer := l.producer
	l.producer = nil
	go func() {
		if producer != nil {
			closeProducer(producer)
		}
		p.router.put(func() { p.settle(l, err) }) // behind the answers that the closing produced
	}()
}

func (p *Producer) settle(l *lane, err error) {
	l.waiting = append(l.unanswered, l.waiting...)
	l.unanswered, l.isFailing = nil, false
	if !l.isLeaving && p.ending == nil {
		p.retry(l, err)
	}
	p.adoptWhenSettled()
}

func (p *Producer) closeMuteProducers() {
	for _, l := range p.lanes {
		if len(l.unanswered) > 0 && time.Since(l.progressAt) >= muteTime {
			p.close(l, errMute)
		}
	}
}

// retry opens a lane again after a pause. It asks for the layout, which may have changed, and reports a segment that takes nothing.
func (p *Producer) retry(l *lane, err error) {
	now := time.Now()
	if l.failingSince.IsZero() {
		l.failingSince = now
	}
	if now.Sub(l.failingSince) >= suspectAfter && now.Sub(l.reportedAt) >= suspectEvery {
		l.reportedAt = now
		document := fmt.Sprintf(`{"segment_id": %d}`, l.segment.ID)
		worker := p.nextWorker()
		go func() { _, _, _ = p.ask(p.context, worker, http.MethodPost, "/suspects", document) }()
	}
	p.pumpAfter(l, l.pause)
	l.pause = min(2*l.pause, maxRetryPause)
	p.askForLayout()
}

// newest returns the layout that was taken last.
func (p *Producer) newest() Layout {
	if p.next != nil {
		return *p.next
	}
	return p.layout
}

// take takes a layout that a worker sent. It is routed by once the segments that are gone have no message in doubt.
//
// A layout whose epoch is not higher than that of the newest layout is late, or the database was restored from a backup. The producer
// asks for the layout, and takes it if isPresent is true: the worker was asked after the newest layout had been taken.
func (p *Producer) take(found Layout, isPresent bool) {
	newest := p.newest()
	if p.ending != nil || found.equals(newest) {
		return
	}
	if found.TopicID != newest.TopicID {
		p.endAndClose(ErrTopicDeleted)
		return
	}
	if found.Epoch <= newest.Epoch && !isPresent {
		p.isInDoubt = true
		p.askForLayout()
		return
	}
	p.next = &found
	for _, l := range p.lanes {
		if l.isLeaving || found.has(l.segment) {
			continue
		}
		l.isLeaving = true
		if l.producer != nil {
			wait := grace
			if len(l.unanswered) == 0 {
				wait = 0
			}
			p.later(wait, func() { p.close(l, nil) })
		}
	}
	p.adoptWhenSettled()
}

func (p *Producer) adoptWhenSettled() {
	if p.next == nil {
		return
	}
	for _, l := range p.lanes {
		if l.isLeaving && len(l.unanswered) > 0 {
			return
		}
	}
	p.layout, p.next = *p.next, nil
	var moved []*pending
	for id, l := range p.lanes {
		if l.isLeaving {
			moved = append(moved, l.waiting...)
			l.waiting = nil
			delete(p.lanes, id)
		}
	}
	slices.SortFunc(moved, func(a, b *pending) int { return int(int64(a.number - b.number)) })
	for _, sent := range moved {
		p.place(sent)
	}
}

// end fails every message and returns the standard producers, for the caller to close.
func (p *Producer) end(reason error) []pulsar.Producer {
	if p.ending == nil {
		p.ending = reason
	}
	var producers []pulsar.Producer
	for _, l := range p.lanes {
		for _, sent := range slices.Concat(l.unanswered, l.waiting) {
			p.answer(sent, nil, p.ending)
		}
		l.unanswered, l.waiting = nil, nil
		if l.producer != nil {
			producers = append(producers, l.producer)
		}
	}
	clear(p.lanes)
	return producers
}

func (p *Producer) endAndClose(reason error) {
	for _, producer := range p.end(reason) {
		go closeProducer(producer)
	}
}

func (p *Producer) answer(sent *pending, id pulsar.MessageID, err error) {
	<-p.room
	p.answers.put(func() {
		sent.done(id, sent.message, err)
		p.lock.Lock()
		defer p.lock.Unlock()
		close(p.open[sent])
		delete(p.open, sent)
	})
}

func (p *Producer) later(pause time.Duration, task func()) {
	time.AfterFunc(pause, func() { p.router.put(task) })
}

func (p *Producer) tick() {
	ticker := time.NewTicker(muteTime / 10)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			p.router.put(p.closeMuteProducers)
		case <-p.context.Done():
			return
		}
	}
}

// closeProducer closes a standard producer. It waits no longer than closeTimeout: the standard client may wait for ever when the
// producer closes itself at the same time, or panic.
func closeProducer(producer pulsar.Producer) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		defer func() { _ = recover() }()
		producer.Close()
	}()
	select {
	case <-closed:
	case <-time.After(closeTimeout):
	}
}

// isFinal returns true if sending the message again is of no use.
func isFinal(err error) bool {
	for _, final := range []error{pulsar.ErrMessageTooLarge, pulsar.ErrMetaTooLarge, pulsar.ErrFailAddToBatch, pulsar.ErrSchema,
		pulsar.ErrInvalidMessage} {
		if errors.Is(err, final) {
			return true
		}
	}
	// The standard client has no values for the last two: a message is too large with its key and properties, or cannot be encrypted.
	for _, final := range []string{"AuthorizationError", "AuthenticationError", "IncompatibleSchema",
		"encryptedPayload exceeds MaxMessageSize", "encryption of message failed"} {
		if strings.Contains(err.Error(), final) {
			return true
		}
	}
	return false
}

// The workers: the layout, the watch, and reports.

func pathOf(topic string) (string, error) {
	parts := strings.Split(strings.TrimPrefix(topic, "topic://"), "/")
	if !strings.HasPrefix(topic, "topic://") || len(parts) != 3 || slices.Contains(parts, "") {
		return "", fmt.Errorf("%q is not a scalable topic; name it as topic://tenant/namespace/name", topic)
	}
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return "/api/v1/topics/" + strings.Join(parts, "/"), nil
}

func (p *Producer) nextWorker() string {
	p.turn++
	return p.options.Workers[p.turn%len(p.options.Workers)]
}

func (p *Producer) request(ctx context.Context, worker, method, rest, document string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(worker, "/")+p.path+rest, strings.NewReader(document))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+p.options.Token())
	if document != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	return p.http.Do(request)
}

func (p *Producer) ask(ctx context.Context, worker, method, rest, document string) (int, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	response, err := p.request(ctx, worker, method, rest, document)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, body, err
}

func (p *Producer) firstLayout(ctx context.Context) (Layout, error) {
	var failure error
	for _, worker := range p.options.Workers {
		status, body, err := p.ask(ctx, worker, http.MethodGet, "/layout", "")
		switch {
		case err != nil:
			failure = fmt.Errorf("no worker answers at %s: %w", worker, err)
		case status == http.StatusOK:
			layout, err := ParseLayout(body)
			if err == nil && layout.DataPlane != "pulsar" {
				err = fmt.Errorf("%s is on data plane %s, not on Pulsar", p.options.Topic, layout.DataPlane)
			}
			return layout, err
		default:
			failure = fmt.Errorf("%s answered %d: %s", worker, status, body)
			if status < http.StatusInternalServerError {
				return Layout{}, failure
			}
		}
	}
	return Layout{}, failure
}

// askForLayout asks the workers in turn for the layout. At most one request is in progress. A request that fails while an older layout
// is in doubt is repeated after a pause, because the watch does not send the older layout again.
func (p *Producer) askForLayout() {
	if p.isAsking || p.ending != nil {
		return
	}
	newest, worker, wasInDoubt := p.newest(), p.nextWorker(), p.isInDoubt
	p.isAsking, p.isInDoubt = true, false
	go func() {
		status, body, err := p.ask(p.context, worker, http.MethodGet, "/layout", "")
		layout, unread := ParseLayout(body)
		p.router.put(func() {
			p.isAsking = false
			if err == nil && status == http.StatusOK && unread == nil {
				p.take(layout, newest.equals(p.newest()))
				if p.isInDoubt { // an older layout came after the worker was asked
					p.askForLayout()
				}
			} else if wasInDoubt || p.isInDoubt {
				p.askAfterPause()
			}
		})
	}()
}

func (p *Producer) askAfterPause() {
	p.isAsking, p.isInDoubt = true, true
	p.later(maxRetryPause, func() {
		p.isAsking = false
		p.askForLayout()
	})
}

// watch holds the watch open until the producer is closed.
func (p *Producer) watch() {
	pause := retryPause
	for attempt := 0; p.context.Err() == nil; attempt++ {
		switch p.follow(p.options.Workers[attempt%len(p.options.Workers)]) {
		case streamBroke:
			pause = retryPause
		case tokenExpired:
			pause = 0
		case notOpened:
			pause = min(max(2*pause, retryPause), maxRetryPause)
		}
		select {
		case <-time.After(pause):
		case <-p.context.Done():
		}
	}
}

type streamEnd int

const (
	notOpened streamEnd = iota
	streamBroke
	tokenExpired
)

// follow reads the events of one stream until it ends.
func (p *Producer) follow(worker string) streamEnd {
	ctx, cancel := context.WithCancel(p.context)
	defer cancel()
	silence := time.AfterFunc(silentTime, cancel)
	defer silence.Stop()
	response, err := p.request(ctx, worker, http.MethodGet, "/layout/watch", "")
	if err != nil {
		return notOpened
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(response.Body)
		if bytes.Contains(body, []byte(`"TopicNotFound"`)) {
			p.router.put(func() { p.endAndClose(ErrTopicDeleted) })
		}
		return notOpened
	}
	end := streamBroke
	readEvents(response.Body, func() { silence.Reset(silentTime) }, func(name, data string) bool {
		if name == "layout" {
			if layout, err := ParseLayout([]byte(data)); err == nil {
				p.router.put(func() { p.take(layout, false) })
			}
		}
		if name == "end" && strings.Contains(data, "token expired") {
			end = tokenExpired
		}
		return name != "end"
	})
	return end
}

// readEvents puts the lines of a text/event-stream together. It calls heard for each line and take for each event, until take returns
// false or the stream ends.
func readEvents(stream io.Reader, heard func(), take func(name, data string) bool) {
	lines := bufio.NewReader(stream)
	name, data := "message", ""
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return
		}
		heard()
		line = strings.TrimRight(line, "\r\n")
		switch {
		case strings.HasPrefix(line, "event:"):
			name = strings.TrimSpace(line[len("event:"):])
		case strings.HasPrefix(line, "data:"):
			if data != "" {
				data += "\n"
			}
			data += strings.TrimSpace(line[len("data:"):])
		case line == "" && data != "":
			if !take(name, data) {
				return
			}
			name, data = "message", ""
		}
	}
}

// A queue runs functions one after the other.
type queue struct {
	lock     sync.Mutex
	filled   *sync.Cond
	tasks    []func()
	isClosed bool
}

func newQueue() *queue {
	q := &queue{}
	q.filled = sync.NewCond(&q.lock)
	return q
}

// put adds a task, and never blocks. It returns false, and drops the task, if the queue was closed.
func (q *queue) put(task func()) bool {
	q.lock.Lock()
	defer q.lock.Unlock()
	if q.isClosed {
		return false
	}
	q.tasks = append(q.tasks, task)
	q.filled.Signal()
	return true
}

// close has run return when the queue is empty.
func (q *queue) close() {
	q.lock.Lock()
	defer q.lock.Unlock()
	q.isClosed = true
	q.filled.Signal()
}

func (q *queue) run() {
	for {
		q.lock.Lock()
		for len(q.tasks) == 0 && !q.isClosed {
			q.filled.Wait()
		}
		tasks := q.tasks
		q.tasks = nil
		q.lock.Unlock()
		if len(tasks) == 0 {
			return
		}
		for _, task := range tasks {
			task()
		}
	}
}
