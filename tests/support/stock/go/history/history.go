// Package history appends lines that `cleave check-history` reads, and tells when the process is to end.
package history

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// File is one process's history. Each line is written by one call, so it is safe for concurrent use.
type File struct{ file *os.File }

// Open opens or creates a history.
func Open(path string) *File {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	Demand(err)
	return &File{file}
}

// Note writes a line. A message is named by its payload, `PRODUCER NUMBER`, and its key. `more` are the fields of a consumer.
func (f *File) Note(event string, payload []byte, key string, more ...string) {
	producer, number, _ := strings.Cut(string(payload), " ")
	fields := append([]string{fmt.Sprint(Monotonic()), event, producer, key, number}, more...)
	_, err := f.file.WriteString(strings.Join(fields, "\t") + "\n")
	Demand(err)
}

// Monotonic returns the machine's monotonic clock in nanoseconds, which is one for all its processes.
func Monotonic() int64 {
	var now unix.Timespec
	Demand(unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
	return now.Nano()
}

// UntilSIGTERM returns a context that ends at SIGTERM.
func UntilSIGTERM() context.Context {
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	return ctx
}

// Demand ends the process if there is an error.
func Demand(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
