"""A goodbye and everything else of that life, at the real leader in every order: whoever has left has nothing.

A consumer may have several words under way at once: a register that nobody answered in time arrives beside the next one, a stream
is asked for twice, and the goodbye overtakes them all (apache/pulsar#26433). The leader's rounds are the test's to begin, so that
what is in its mailbox together is the test's choice as well; its clock stands still, so no grace period helps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from controller.domain.errors import CleaveError, FencedOut, LostRace, StoreUnavailable
from tests.support.led_topic import LedTopic, Word
from tests.support.orders import cuts, merges

pytestmark = pytest.mark.timeout(300)  # thousands of transactions, beside whatever else the machine does


RECONNECTS = (("register 1", "attach 1"), ("register 2", "attach 2"))
"""Two at once. A stream is asked for when the register was answered."""


def orders(*others: tuple[Word, ...]) -> list[tuple[Word, ...]]:
    """Of two reconnects, a goodbye and others. Which of the two is called the first makes no difference."""
    found = merges(*RECONNECTS, ("goodbye",), *others)
    return [one for one in found if one.index("register 1") < one.index("register 2")]


REFUSED = {"register": FencedOut, "attach": LostRace, "detach": LostRace, "goodbye": None}
"""What becomes of each word after the goodbye. A goodbye may be said twice."""


def expected(order: Sequence[Word]) -> list[type[CleaveError] | None]:
    """What is said before the goodbye is done, what is said after it is refused."""
    place = order.index("goodbye")
    return [None if i <= place else REFUSED[word.partition(" ")[0]] for i, word in enumerate(order)]


def test_whoever_is_there_has_a_session_and_what_there_is_to_read(led_topic: LedTopic) -> None:
    """Or the absence of all that, below, would say nothing."""
    life = led_topic.life("register 0", "attach 0")

    assert {what for what, _ in led_topic.rows(life)} == {"session", "bucket"}
    assert life.streams["0"].owned
    assert life.streams["0"].ended is None


def test_two_reconnects_the_end_of_a_stream_and_a_goodbye_in_every_order_leave_nothing(
    led_topic: LedTopic,
) -> None:
    """Each in a round of its own."""
    for order in orders(("detach 0",)):
        life = led_topic.life("register 0", "attach 0")

        said = [answer for word in order for answer in led_topic.say(life, word)]

        assert said == expected(order), order
        led_topic.demand_gone(life, order)


def test_a_life_of_which_nothing_was_heard_before_leaves_nothing_however_its_words_come_together(
    led_topic: LedTopic,
) -> None:
    """A goodbye may be the first that arrives of all; and one round may find any number of words in the mailbox."""
    for order in orders():
        for rounds in cuts(order):
            life = led_topic.life()

            said = [answer for words in rounds for answer in led_topic.say(life, *words)]

            assert said == expected(order), rounds
            led_topic.demand_gone(life, rounds)


@pytest.mark.parametrize("change", [LedTopic.hand_over, LedTopic.depose])
def test_a_change_of_leader_at_any_place_leaves_nothing_at_either(
    led_topic: LedTopic, change: Callable[[LedTopic], None]
) -> None:
    """What comes after the change is heard by the old leader first, which refuses it, and is said again to the new one."""
    for order in merges(RECONNECTS[0], ("register 2",), ("goodbye",)):
        for place in range(len(order) + 1):
            life = led_topic.life()
            said = [answer for word in order[:place] for answer in led_topic.say(life, word)]

            change(led_topic)
            for word in order[place:]:
                assert led_topic.say_to_the_old(life, word) == [StoreUnavailable], (order, place)
                said += led_topic.say(life, word)

            assert said == expected(order), (order, place)
            led_topic.wake()
            led_topic.demand_gone(life, (order, place))


def test_the_late_words_of_one_life_take_nothing_from_the_next(led_topic: LedTopic) -> None:
    """A process that was replaced says everything once more, its goodbye too: the one that runs now keeps all it has."""
    for order in merges(RECONNECTS[0], ("goodbye",), ("register next", "attach next")):
        before = led_topic.life("register 0", "attach 0")
        life = led_topic.next_life(before)

        for word in order:
            led_topic.say(life if word.endswith("next") else before, word)

        assert ("session", life.incarnation) in led_topic.rows(life), order
        assert life.streams["next"].ended is None, order
        assert life.streams["next"].owned, order
        assert all(stream.ended for stream in before.streams.values()), order
        assert led_topic.say(life, "goodbye") == [None]
        led_topic.demand_gone(life, order)
