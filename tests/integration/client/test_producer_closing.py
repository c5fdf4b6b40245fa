"""A producer that is closed: by its thread, by another thread, by a signal's handler, and while a segment is split."""

from __future__ import annotations

import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from controller.client.producer import Producer
from controller.domain.errors import DataPlaneUnavailable, Terminal
from controller.domain.key_hash import key_hash
from controller.postgres_source import PostgresSource
from controller.services.segment_admin import splitting
from tests.integration.client.conftest import flows, stored
from tests.support.bench import TOPIC, Bench
from tests.support.drawn import cases
from tests.support.faulty_logs import FaultyLogs, MeetingLogs
from tests.support.waiting import wait_until


@pytest.fixture
def producer(failing_producer: Producer) -> Producer:
    return failing_producer


def test_a_closed_producer_takes_nothing_more_and_says_what_it_dropped(
    bench: Bench, producer: Producer
) -> None:
    producer.send(b"0", "key-1")
    producer.close(flush=False)

    for act in (producer.flush, lambda: producer.send(b"1", "key-1")):
        with pytest.raises(Terminal, match=r"was closed with 1 message\(s\) that are not known to be stored"):
            act()
    assert producer.pending == 1
    assert flows(bench, 0, 1) == {}


def test_a_close_stores_what_was_sent(bench: Bench, producer: Producer) -> None:
    for number in range(7):
        producer.send(b"%d" % number, "key-1")
    producer.close()

    assert producer.pending == 0
    assert flows(bench, 0, 1) == {b"key-1": [*range(7)]}


def test_a_close_that_cannot_store_what_was_sent_says_how_much_is_dropped_and_why(
    bench: Bench, source: PostgresSource, logs: FaultyLogs
) -> None:
    bench.topic_with(segments=1)
    logs.refuse = 1_000_000
    producer = Producer(source, logs, TOPIC, send_timeout_seconds=0.2)
    producer.send(b"0", "key-1")

    with pytest.raises(
        Terminal,
        match=r"was closed with 1 message\(s\) that are not known to be stored \(.+\); create another producer",
    ) as refusal:
        producer.close()
    producer.close()

    assert isinstance(refusal.value.__cause__, DataPlaneUnavailable)


def test_a_block_that_ends_with_an_error_drops_what_is_pending(
    bench: Bench, source: PostgresSource, producer: Producer
) -> None:
    def send() -> None:
        with Producer(source, bench.logs, TOPIC) as dropping:
            dropping.send(b"0", "key-1")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        send()

    assert flows(bench, 0, 1) == {}


def test_a_producer_closed_with_nothing_pending_has_flushed(producer: Producer) -> None:
    producer.send(b"0", "key-1")
    producer.flush()
    producer.close()
    producer.close()

    producer.flush()
    with pytest.raises(Terminal, match="was closed; create another producer"):
        producer.send(b"1", "key-1")


def test_a_send_while_another_thread_closes_says_what_is_dropped_and_not_what_is_being_stored(
    bench: Bench, source: PostgresSource
) -> None:
    bench.topic_with(segments=1)
    logs = MeetingLogs(bench.logs, at_once=2)
    producer = Producer(source, logs, TOPIC, batch_messages=1)
    producer.send(b"0", "key-1")
    with ThreadPoolExecutor(2) as threads:
        closing = threads.submit(producer.close, flush=False)
        wait_until(lambda: producer._busy_threads, message="it closes")
        late = threads.submit(producer.send, b"1", "key-1")
        wait_until(lambda: late.done() or len(producer._busy_threads) == 2, message="it waits for that")
        logs.meet()
        closing.result()
        with pytest.raises(Terminal, match="was closed; create another producer"):
            late.result()
    assert stored(bench, 0)


@pytest.mark.parametrize("delay_seconds", [None, 0.01])
def test_a_flush_that_is_under_way_ends_when_another_thread_closes(
    bench: Bench, source: PostgresSource, logs: FaultyLogs, delay_seconds: float | None
) -> None:
    bench.topic_with(segments=1)
    logs.refuse = 1_000_000
    producer = Producer(source, logs, TOPIC, batch_delay_seconds=delay_seconds)
    producer.send(b"0", "key-1")
    with ThreadPoolExecutor(1) as threads:
        flushing = threads.submit(producer.flush)
        wait_until(
            lambda: producer._storing_threads and logs.refuse < 1_000_000, message="a try of the flush"
        )
        producer.close()
        with pytest.raises(Terminal, match=r"closed with 1 message\(s\)"):
            flushing.result(timeout=30)


@pytest.mark.parametrize("delay_seconds", [None, 0.01])
def test_a_flush_that_is_under_way_ends_when_a_signal_s_handler_closes(
    bench: Bench, source: PostgresSource, logs: FaultyLogs, delay_seconds: float | None
) -> None:
    """The handler runs in the thread that flushes, anywhere in it: what it closes, that call has to end."""
    bench.topic_with(segments=1)
    logs.refuse = 1_000_000
    producer = Producer(source, logs, TOPIC, batch_delay_seconds=delay_seconds)
    before = signal.signal(signal.SIGUSR2, lambda _number, _frame: producer.close())
    try:
        producer.send(b"0", "key-1")
        signalling = threading.Thread(
            target=lambda: (
                wait_until(
                    lambda: producer._storing_threads and logs.refuse < 1_000_000,
                    message="a try of the flush",
                ),
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2),
            )
        )
        signalling.start()
        with pytest.raises(Terminal, match=r"closed with 1 message\(s\)"):
            producer.flush()
        signalling.join()
    finally:
        signal.signal(signal.SIGUSR2, before)


@pytest.mark.parametrize("sends_too", [False, True])
def test_a_handler_that_closes_in_the_middle_of_a_send_waits_for_nothing_that_the_send_holds_up(
    bench: Bench, source: PostgresSource, logs: FaultyLogs, sends_too: bool
) -> None:
    """The signal comes where the key is encoded, with the producer's lock held. The end of the handler's own send does not end the send that
    the handler interrupts.
    """
    bench.topic_with(segments=1)
    producer = Producer(source, logs, TOPIC, batch_messages=1, batch_delay_seconds=0.01)
    producer.send(b"0", "key-1")

    class Handled(str):
        __slots__ = ()

        def encode(self, *_given: str) -> bytes:  # type: ignore[override]
            if sends_too:
                producer.send(b"1", "key-1")
            producer.close()
            assert not producer._sends._shutdown, "the send that is interrupted ends the producer"
            return b"key-2"

    with pytest.raises(Terminal, match="was closed"):
        producer.send(b"2", Handled("key-2"))


@pytest.mark.drawn
def test_closed_in_the_middle_of_a_split_a_key_is_stored_in_order_and_the_rest_is_counted(
    bench: Bench, source: PostgresSource
) -> None:
    """Trap 29, at drawn places: what is stored is the beginning of what was sent, and what is not is said."""
    bench.topic_with(segments=1)
    for round_number in range(cases(4, 60)):
        chooser = random.Random(round_number)
        check_a_close_over_a_split(bench, source, b"%d" % round_number, chooser)


def check_a_close_over_a_split(
    bench: Bench, source: PostgresSource, mark: bytes, chooser: random.Random
) -> None:
    split_at, close_at = (chooser.randrange(0, 10_000) for _ in range(2))
    segment_id = bench.layout.segment_for(key_hash("key-1").segment_hash).segment_id
    is_split_due, is_close_due = threading.Event(), threading.Event()
    producer = Producer(
        source, bench.logs, TOPIC, batch_messages=chooser.choice((50, 500)), max_pending_messages=100_000
    )
    with ThreadPoolExecutor(2) as threads:
        splitting_aside = threads.submit(lambda: (is_split_due.wait(), bench.reshape(splitting(segment_id))))
        closing = threads.submit(lambda: (is_close_due.wait(), producer.close()))
        said = None
        try:
            for number in range(10_000):
                if number == split_at:
                    is_split_due.set()
                if number == close_at:
                    is_close_due.set()
                producer.send(mark + b" %d" % number, "key-1")
            producer.flush()
        except Terminal as error:
            said = str(error)
        sent = number + 1
        closing.result()
        is_split_due.set()
        splitting_aside.result()

    logs = sorted({0, segment_id, *(one.segment_id for one in bench.layout.active)})
    numbers = [
        int(message.payload.split()[1])
        for one in logs
        for message in stored(bench, one)
        if message.payload.split()[0] == mark
    ]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) + producer.pending in (sent - 1, sent)  # the last one was refused, or was kept
    assert producer.pending == 0 or f"{producer.pending} message(s)" in (said or "")
