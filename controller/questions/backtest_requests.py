"""Reads requests for backtests from the texts of the command line and of Airflow's form: policies, prices and seeds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from controller.actions.fields import parse_parameters
from controller.domain.errors import InvalidInput, Unsupported
from controller.domain.formatting import shown
from controller.domain.policy_parameters import write_parameter
from controller.questions.question import Row, read_statement
from controller.questions.spans import span
from controller.services.policy_backtest import Loads

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from controller.backtest.score import Prices
    from spark_jobs.policy_backtest import Candidate, Question

MOST_DAYS_OVER_HTTP = 200.0
"""Maximum number of simulated days of a request over HTTP: about ten seconds of computation, without the reading of the load."""
DEFAULT_POLICIES = ("in-force", "adaptive", "pip483")
"""Policies that are compared by default."""
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
class BacktestRequest:
    """A request for a backtest of policies, with texts and numbers as the function `question` reads them. If `parameters` is not None, the
    policy in force is compared with the same policy and these parameters, in place of `policies`.
    The engine is chosen if `engine` is None. `pictures` adds the data that a report draws.
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
        """Return the comparison to compute for each load: the policies, or, if `parameters` is not None, the policy in
        force without and with these parameters. Raises InvalidInput for policies, weights, seeds or a duration that
        cannot be read or are out of bounds, and Unsupported without NumPy.
        """
        return question(
            self.policies if self.parameters is None else what_if(self.parameters),
            weights=self.weights,
            seeds=self.seeds,
            actuation_seconds=self.actuation_seconds,
            pictures=self.pictures,
        )


def past(since: str | None, until: str | None, now: datetime) -> tuple[datetime, datetime]:
    """Return the start and the end of the requested span. A missing start is seven days before `now`, a missing end
    is `now`. Raises InvalidInput for a text that is neither a time nor an age, and for an empty span.
    """
    return span(since, until, now=now, default=(now - _DEFAULT_SPAN, now))


def question(
    policies: Iterable[str | Candidate] | str,
    *,
    weights: str = "",
    seeds: int = 1,
    actuation_seconds: float = 0.0,
    pictures: bool = False,
) -> Question:
    """Return the comparison to compute for each load, in ticks of 60 seconds. `policies` are candidates and texts of one
    policy each (as `candidate` reads them), or one text with all policies (as `policies_in` divides it); if there is no
    policy, `DEFAULT_POLICIES` are compared. `weights` is a text as `prices` reads it; `seeds` is the number of draws of
    each load, 1 to `MOST_SEEDS`, of which draw 0 is the recorded load; `pictures` adds the data that a report draws;
    `actuation_seconds` is the duration of a reshape, 0 to 86400.

    Raises InvalidInput for values that cannot be read or are out of bounds, and for two policies with equal texts; Unsupported
    if NumPy or another library is not installed. Rules and parameters are not checked until the backtest runs.
    """
    _demand_libraries()
    from spark_jobs.policy_backtest import Question

    if not 1 <= seeds <= MOST_SEEDS:
        raise InvalidInput(f"seeds must be between 1 and {MOST_SEEDS}, not {seeds}")
    if not 0 <= actuation_seconds <= 86_400:
        raise InvalidInput(f"actuation must be between 0 and 86400 s, not {actuation_seconds:g} s")
    given = policies_in(policies) if isinstance(policies, str) else tuple(policies)
    candidates = tuple(
        candidate(policy) if isinstance(policy, str) else policy for policy in given or DEFAULT_POLICIES
    )
    names = [policy.name for policy in candidates]
    repeated_names = {name for name in names if names.count(name) > 1}
    if repeated_names:
        raise InvalidInput(
            f"policy {', '.join(sorted(repeated_names))} is named twice; name each policy once"
        )
    return Question(candidates, prices(weights), tuple(range(seeds)), 60, actuation_seconds, pictures)


def what_if(parameters: Mapping[str, Any]) -> tuple[Candidate, Candidate]:
    """Return two candidates: the policy in force (named `in force`), and the same policy with these parameters (`what if`), which are
    checked when the backtest runs. Raises InvalidInput for a parameter that is a list or an object, and Unsupported if NumPy or another
    library is not installed.
    """
    _demand_libraries()
    from spark_jobs.policy_backtest import IN_FORCE, Candidate

    return Candidate("in force", IN_FORCE), Candidate("what if", IN_FORCE, _as_json(parameters))


def _demand_libraries() -> None:
    """Raise Unsupported, with the name of the library, if a library that backtests need is not installed."""
    try:
        import spark_jobs.policy_backtest as job
    except ImportError as error:
        raise Unsupported(
            f"a backtest needs {error.name}; install it, or this package with the extra 'backtest'"
        ) from None
    del job


def policies_in(text: str) -> list[str]:
    """Return the texts of the policies in a text, which commas, semicolons, spaces or line breaks separate. They
    are not checked, and may be repeated; empty if the text has none. Raises InvalidInput if the text contains anything
    else.

    Names of some rules contain spaces or a comma, and commas separate parameters, so the longest matching name is
    used.
    """
    from controller.backtest.rivals.registry import RULES

    names = "|".join(re.escape(name) for name in sorted(RULES, key=len, reverse=True))
    policy = rf"(?:(?:{names})(?=[\s,;:]|$)|[^\s,;:]+){_PARAMETERS}"
    if re.sub(rf"{policy}|[\s,;]", "", text):
        raise InvalidInput(f"policies {shown(text)}: write parameters as adaptive:target_use=0.8")
    return re.findall(policy, text)


def candidate(text: str) -> Candidate:
    """Return the policy of a text such as `adaptive`, or with parameters
    `adaptive:target_use=0.8,max_segments=128`; of several values of a parameter the last counts. The text without
    surrounding white space is the name of the policy. The name of the rule and the parameters are checked when the
    backtest runs. Raises InvalidInput for a character that is not printable, a parameter without `=` or without a name,
    null, a list and an object.
    """
    from spark_jobs.policy_backtest import Candidate

    if not text.isprintable():  # the text becomes a name in tables and in pages
        raise InvalidInput(f"policy {shown(text)}: use printable characters")
    rule, _, parameters = text.strip().partition(":")
    pairs = [pair.strip() for pair in parameters.split(",") if pair.strip()]
    values = parse_parameters(pairs)
    for parameter, value in values.items():
        if value is None:
            raise InvalidInput(f"policy {shown(text)}: {parameter}=null; give the value to try")
    return Candidate(text.strip(), rule.strip(), _as_json(values))


def _as_json(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters in the form that every JSON library reads alike (`write_parameter`); NaN and infinity become
    texts, and the policy decides whether they are valid. Raises InvalidInput for a list or an object, which no parameter
    can hold.
    """
    for parameter, value in parameters.items():
        if isinstance(value, list | dict):
            raise InvalidInput(f"{shown(parameter)} = {shown(value)}; give a number, a text, true or false")
    return {parameter: write_parameter(value) for parameter, value in parameters.items()}


def prices(text: str) -> Prices:
    """Return the weights of the cost in a text such as `excess=20,change_seconds=60,reseal_seconds=0`. Missing weights have their
    defaults; of several values of a weight the last counts. Raises InvalidInput for an unknown name, a part without a number, and a number
    below 0 or above 1e9.
    """
    from controller.backtest.score import Prices

    defaults = Prices()
    names = [field.name for field in fields(Prices)]
    weights: dict[str, float] = {}
    for pair in (part.strip() for part in text.split(",") if part.strip()):
        name, separator, value = pair.partition("=")
        number = _number(value)
        if name not in names or not separator or number is None:
            raise InvalidInput(
                f"weight {shown(pair)}: write name=number with a number of 0 or more; the weights are "
                + ", ".join(f"{name}={getattr(defaults, name):g}" for name in names)
            )
        weights[name] = number
    return replace(defaults, **weights)


def _number(text: str) -> float | None:
    """Return the number of the text; None unless it is a number from 0 to 1e9."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number <= 1e9 else None


def recorded_load(tx: Connection, loads: Loads) -> Row:
    """Return one row about the records of `inspect.load_history` from `since` to `until` of `loads`, both inclusive: the
    numbers of `topics`, `segments` and `records`, and the times of the first and the last record (`since`, `until`; None
    without a record). Only records of topics that are in `topics` (None or empty: all) and in `namespace` (None: all)
    count; `traces` are ignored.
    """
    topics = list(loads.topics) if loads.topics else None
    [counts] = read_statement(
        tx, _RECORDED, since=loads.since, until=loads.until, topics=topics, namespace=loads.namespace
    )
    return counts
