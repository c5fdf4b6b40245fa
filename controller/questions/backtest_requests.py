"""A backtest as people ask for it, on the command line and in Airflow's form: policies, prices and seeds as texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from controller.actions.fields import parse_parameters
from controller.domain.errors import InvalidInput, Unsupported
from controller.domain.shown import shown
from controller.questions.question import Row, read_statement
from controller.questions.spans import span
from controller.services.policy_backtest import Loads

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from controller.backtest.score import Prices
    from spark_jobs.policy_backtest import Candidate, Question

MOST_DAYS_OVER_HTTP = 200.0
"""Of simulation: some ten seconds of a server's time, beside the reading of what was recorded."""
USUAL = ("in-force", "adaptive", "pip483")
"""The policies that are compared where none is named."""
MOST_SEEDS = 1_000
_DEFAULT_SPAN = timedelta(days=7)
_PARAMETER = r"[^\s,;:=]+\s*=\s*[^\s,;]+"
_PARAMETERS = rf"(?:\s*:\s*{_PARAMETER}(?:\s*,\s*{_PARAMETER})*)?"


_RECORDED = """
    SELECT count(DISTINCT h.topic_id) AS topics, count(DISTINCT (h.topic_id, h.segment_id)) AS segments, count(*) AS records,
           min(h.recorded_at) AS since, max(h.recorded_at) AS until
      FROM inspect.load_history h
     WHERE h.recorded_at BETWEEN :since AND :until AND (CAST(:topics AS text[]) IS NULL OR h.topic = ANY (:topics))
       AND (CAST(:namespace AS text) IS NULL OR starts_with(h.topic, 'topic://' || :namespace || '/'))
"""


@dataclass(frozen=True, slots=True)
class AskedBacktest:
    """A backtest as somebody types it: policies as `question` reads them, or `parameters` beside those in force. `engine`: chosen where
    None; `pictures`: with what a report draws.
    """

    loads: Loads
    policies: Sequence[str] = ()
    parameters: Mapping[str, Any] | None = None
    weights: str = ""
    seeds: int = 1
    actuation_seconds: float = 0.0
    engine: str | None = None
    pictures: bool = False

    def question(self) -> Question:
        """What is asked about every load. Raises as `question`."""
        if self.parameters is not None:
            return of_what_if(self.parameters)
        return question(
            self.policies,
            weights=self.weights,
            seeds=self.seeds,
            actuation_seconds=self.actuation_seconds,
            pictures=self.pictures,
        )


def past(since: str | None, until: str | None, now: datetime) -> tuple[datetime, datetime]:
    """The span asked about; the last seven days where nothing is said. Raises InvalidInput."""
    return span(since, until, now=now, unless_given=(now - _DEFAULT_SPAN, now))


def question(
    policies: Iterable[str] | str,
    *,
    weights: str = "",
    seeds: int = 1,
    actuation_seconds: float = 0.0,
    pictures: bool = False,
) -> Question:
    """What is asked about every load; policies in one text are those that `policies_in` finds.

    Raises InvalidInput for what cannot be read, Unsupported without NumPy.
    """
    _demand_libraries()
    from spark_jobs.policy_backtest import Question

    if not 1 <= seeds <= MOST_SEEDS:
        raise InvalidInput(f"seeds = {seeds}; give 1 to {MOST_SEEDS}")
    if not 0 <= actuation_seconds <= 86_400:
        raise InvalidInput(f"actuation of {actuation_seconds:g} s; give 0 to 86400 s")
    named = policies_in(policies) if isinstance(policies, str) else policies
    chosen = tuple(map(candidate, named)) or tuple(map(candidate, USUAL))
    twice = {one.name for one in chosen if [other.name for other in chosen].count(one.name) > 1}
    if twice:
        raise InvalidInput(f"the policy {', '.join(sorted(twice))} is named twice; once is enough")
    return Question(chosen, prices(weights), tuple(range(seeds)), 60, actuation_seconds, pictures)


def of_what_if(parameters: Mapping[str, Any]) -> Question:
    """The policy in force beside the same with other parameters. Raises Unsupported without NumPy."""
    _demand_libraries()
    from spark_jobs.policy_backtest import IN_FORCE, Candidate, Question

    return Question((Candidate("in force", IN_FORCE), Candidate("what if", IN_FORCE, parameters)))


def _demand_libraries() -> None:
    try:
        import spark_jobs.policy_backtest as job
    except ImportError as error:
        raise Unsupported(
            f"a backtest needs {error.name}; install it, or this package with the extra 'backtest'"
        ) from None
    del job


def policies_in(text: str) -> list[str]:
    """The policies that one text names, with commas, semicolons, spaces or lines between them.

    Some rules have spaces or a comma in their names, and parameters have commas between them: the longest name that fits counts.
    """
    from controller.backtest.rivals.registry import RULES

    names = "|".join(re.escape(name) for name in sorted(RULES, key=len, reverse=True))
    return re.findall(rf"(?:(?:{names})(?=[\s,;:]|$)|[^\s,;:]+){_PARAMETERS}", text)


def candidate(text: str) -> Candidate:
    """`adaptive`, or with parameters of its own `adaptive:target_use=0.8,max_segments=128`. Raises InvalidInput."""
    from spark_jobs.policy_backtest import Candidate

    if not text.isprintable():  # it becomes a name, in tables and in pages
        raise InvalidInput(f"policy {shown(text)}: use printable characters")
    rule, _, parameters = text.strip().partition(":")
    pairs = [pair.strip() for pair in parameters.split(",") if pair.strip()]
    found = parse_parameters(pairs)
    for parameter, value in found.items():
        if value is None:
            raise InvalidInput(f"policy {shown(text)}: {parameter}=null; give the value to try")
    return Candidate(text.strip(), rule.strip(), found)


def prices(text: str) -> Prices:
    """The weights of the cost: `excess=20,change_seconds=60,reseal_seconds=0`, each of which may be left out."""
    from controller.backtest.score import Prices

    usual = Prices()
    known = [one.name for one in fields(Prices)]
    given: dict[str, float] = {}
    for pair in (part.strip() for part in text.split(",") if part.strip()):
        name, equals, value = pair.partition("=")
        number = _number(value)
        if name not in known or not equals or number is None:
            raise InvalidInput(
                f"weight {shown(pair)}: write name=number with a number of 0 or more; the weights are "
                + ", ".join(f"{one}={getattr(usual, one):g}" for one in known)
            )
        given[name] = number
    return replace(usual, **given)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number <= 1e9 else None


def recorded_load(tx: Connection, loads: Loads) -> Row:
    """Count the topics, segments and records of these loads that PostgreSQL keeps."""
    topics = list(loads.topics) if loads.topics else None
    [counts] = read_statement(
        tx, _RECORDED, since=loads.since, until=loads.until, topics=topics, namespace=loads.namespace
    )
    return counts
