"""The ids of topics that a leader has in memory: they appear with a session, and disappear with the topic, its last session or the lease."""

from __future__ import annotations

from controller.services import topic_admin
from tests.support.bench import TOPIC, Bench
from tests.support.led_topic import LedTopic


def test_an_id_appears_with_the_first_session_and_disappears_with_the_last(led_topic: LedTopic) -> None:
    assert led_topic.leader.led_topic_id(TOPIC) is None
    life = led_topic.life("register 0")
    assert led_topic.leader.led_topic_id(TOPIC) == led_topic.key.topic_id

    led_topic.say(life, "goodbye")

    assert led_topic.leader.led_topic_id(TOPIC) is None


def test_a_leader_that_gives_its_shard_back_has_no_id(led_topic: LedTopic) -> None:
    life = led_topic.life("register 0")

    led_topic.hand_over()

    assert led_topic.other.led_topic_id(TOPIC) is None, "before the former leader has looked at its leases"
    led_topic.wake()
    assert led_topic.other.led_topic_id(TOPIC) is None
    led_topic.say(life, "register 1")
    assert led_topic.leader.led_topic_id(TOPIC) == led_topic.key.topic_id


def test_the_id_of_a_deleted_topic_disappears(bench: Bench, led_topic: LedTopic) -> None:
    life = led_topic.life("register 0", "attach 0")

    bench.finish(topic_admin.delete_topic(bench.store, TOPIC, bench.request()))
    led_topic.say(life, "attach 1")

    assert led_topic.leader.led_topic_id(TOPIC) is None
