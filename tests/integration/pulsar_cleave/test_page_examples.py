"""What the programs of the pages do: a job whose mail failed is done again, and an index is continued from the kept position."""

from __future__ import annotations

from controller.store.topics.subscriptions import SubscriptionKind
from tests.integration.pulsar_cleave.conftest import Shop
from tests.support.joined import send_numbers
from tests.support.page_examples import run_example

KEYS = [f"key-{i}" for i in range(10)]


def send(shop: Shop, *numbers: int) -> None:
    with shop.client.producer(shop.topic) as producer:
        send_numbers(producer, *numbers, keys=KEYS)


def test_the_queue_of_the_page_does_a_failed_job_again(shop: Shop) -> None:
    shop.bench.topic_with(segments=2, subscriptions=("jobs",), kind=SubscriptionKind.QUEUE)
    send(shop, 0)
    done: list[bytes] = []

    def work(payload: bytes) -> None:
        if not done:
            done.append(b"failed once")
            raise ConnectionError("no mail server")
        done.append(payload)

    run_example(
        "how-to/share-work-in-a-queue.md",
        topic=shop.topic,
        client=shop.client,
        stopping=lambda: len(done) > len(KEYS),
        send_mail=work,
    )

    assert done.count(b"0") == len(KEYS)
    assert shop.bench.unread("jobs") == 0


def test_the_checkpoints_of_the_page_are_gone_on_from(shop: Shop) -> None:
    shop.bench.topic_with(segments=2)
    send(shop, 0, 1)
    indexed: list[tuple[str, bytes]] = []
    kept: list[bytes] = []

    def run(until: int) -> None:
        run_example(
            "how-to/read-from-checkpoints.md",
            topic=shop.topic,
            client=shop.client,
            load_checkpoint=lambda: kept[-1] if kept else None,
            stopping=lambda: len(indexed) >= until,
            index=lambda key, payload: indexed.append((key, payload)),
            save_checkpoint=kept.append,
        )

    run(2 * len(KEYS))
    send(shop, 2)
    run(3 * len(KEYS))

    assert sorted(indexed) == sorted((key, b"%d" % i) for key in KEYS for i in range(3))
