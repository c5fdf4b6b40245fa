"""A situation made small: whatever can be left out while it still shows what it shows, is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from controller.domain.evaluation_input import EvaluationInput, History
from controller.domain.load_record import LoadStats
from controller.domain.policy import AutoScalePolicy


def smallest(s: EvaluationInput, still_shows: Callable[[EvaluationInput], bool]) -> EvaluationInput:
    """A situation no single step below makes smaller; `still_shows` holds for it as for `s`.

    The text form is what people get, so what is shown is asked of the situation read back from it.
    """
    s = EvaluationInput.from_json(s.to_json()) if still_shows(EvaluationInput.from_json(s.to_json())) else s
    while True:
        smaller = next((candidate for candidate in _steps(s) if still_shows(candidate)), None)
        if smaller is None:
            return s
        s = smaller


def _steps(s: EvaluationInput) -> Iterator[EvaluationInput]:
    if s.stream_consumers:
        yield replace(s, stream_consumers={})
    if len(s.stream_consumers) > 1:
        most = max(s.stream_consumers, key=lambda name: s.stream_consumers[name])
        yield replace(s, stream_consumers={most: s.stream_consumers[most]})
    if s.history != History():
        yield replace(s, history=History())
    plain = AutoScalePolicy(strict_pulsar=True)
    for parameter in s.policy.to_document():
        if getattr(s.policy, parameter) != getattr(plain, parameter):
            yield replace(s, policy=replace(s.policy, **{parameter: getattr(plain, parameter)}))
    for segment_id, record in s.loads.items():
        yield replace(s, loads={i: r for i, r in s.loads.items() if i != segment_id})
        if record.stats != LoadStats():
            yield replace(s, loads={**s.loads, segment_id: replace(record, stats=LoadStats())})
