"""Metrics of an application: its producers and consumers, and the loops of their threads.

They are in the default registry of `prometheus_client`, which the application serves. Metrics of Cleave's own processes are in
`controller.metrics`, which a client does not import.
"""

from __future__ import annotations

from prometheus_client import Counter

PRODUCER_BATCHES = Counter(
    "cleave_producer_batches_total",
    "Batches that this process stored: on Pulsar each of one entry bucket, on the embedded logs each of one segment.",
)
PRODUCER_MESSAGES = Counter("cleave_producer_messages_total", "Messages in those batches.")
CONSUMER_MESSAGES = Counter(
    "cleave_consumer_messages_total",
    "Messages that consumers of this process received, by kind of consumer: stream, queue, checkpoint. Repeated deliveries"
    " count again.",
    ["kind"],
)
CONSUMER_ACKNOWLEDGED = Counter(
    "cleave_consumer_acknowledged_total",
    "Messages that consumers of this process acknowledged, by kind of consumer: stream, queue. Of a stream, the messages of the batch"
    " that the call names.",
    ["kind"],
)
STALLED_READERS = Counter(
    "cleave_stalled_readers_total",
    "Readers that were reopened because a broker had stopped delivering to them.",
)
MISPLACED_MESSAGES = Counter(
    "cleave_misplaced_messages_total", "Messages of another entry bucket that a reader got and held back."
)
SHORTENED_LOGS = Counter(
    "cleave_shortened_logs_total",
    "Readers of embedded logs that ended because, after a fail-over or a restore, the log lacked messages that they had read.",
)
LOOP_ERRORS = Counter(
    "cleave_loop_errors_total",
    "Rounds of a loop that ended with an unexpected error; the log has its traceback, and the loop goes on.",
    ["loop"],
)
IGNORED_NOTIFICATIONS = Counter(
    "cleave_ignored_notifications_total",
    "Notifications of PostgreSQL that Cleave does not send: their payload is no id. Any login may send them.",
    ["channel"],
)
