"""Pulsar 5.0.0-M1's own scalable-topic classes, asked over a pipe: a line of JSON in, a line of JSON out.

A process of its own, since a JVM cannot be started twice in one and other tests have theirs. Run as
`python scalable_worker.py JARS`. Each request names one of the questions below and carries a batch of items; the
answer is a list, one a piece. Nothing of Cleave is in here.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

_SCALABLE = "org.apache.pulsar.broker.service.scalable."
_COMMON = "org.apache.pulsar.common.scalable."


class Oracle:
    """Holds the classes; each public method answers one question about plain documents."""

    def __init__(self) -> None:
        import jpype

        java = jpype.JClass
        self._failure = java("java.lang.RuntimeException")
        self._long, self._integer = java("java.lang.Long"), java("java.lang.Integer").valueOf
        self._map, self._seconds = java("java.util.HashMap"), java("java.time.Duration").ofSeconds
        self._mapper = java("org.apache.pulsar.common.util.ObjectMapperFactory").create()
        feature = java("com.fasterxml.jackson.databind.DeserializationFeature").FAIL_ON_UNKNOWN_PROPERTIES
        self._mapper.configure(feature, False)
        self._metadata = java("org.apache.pulsar.broker.resources.ScalableTopicMetadata")
        self._layout = java(_SCALABLE + "SegmentLayout")
        self._config = java(_SCALABLE + "AutoScaleConfig")
        self._decide = java(_SCALABLE + "AutoScalePolicyEvaluator").decide
        self._range = java(_COMMON + "HashRange")
        self._stats = java(_COMMON + "SegmentLoadStats")
        factory = self._mapper.getTypeFactory()
        samples = factory.constructMapType(
            self._map.class_, self._long.class_, java(_SCALABLE + "SegmentLoadSample").class_
        )
        self._samples = factory.constructCollectionType(java("java.util.ArrayList").class_, samples)
        reporter = java(_SCALABLE + "SegmentLoadReporter").class_
        self._changed = next(m for m in reporter.getDeclaredMethods() if m.getName() == "isMaterialChange")
        self._changed.setAccessible(True)
        self._double = java("java.lang.Double").valueOf

    def decisions(self, request: dict[str, Any]) -> list[str | None]:
        """`decide` of each item, as Java prints it; None where Pulsar refuses the configuration."""
        layouts = [self._read_layout(document) for document in request["layouts"]]
        configs = [self._read_config(values) for values in request["configs"]]
        items = request["items"]
        loads = self._mapper.readValue(json.dumps([item["loads"] for item in items]), self._samples)
        answers: list[str | None] = []
        for item, samples in zip(items, loads, strict=True):
            config = configs[item["config"]]
            if config is None:
                answers.append(None)
                continue
            consumers = self._map()
            for name, count in item["consumers"].items():
                consumers.put(name, self._integer(count))
            last = [self._long.MIN_VALUE if at is None else at for at in (item["split"], item["merge"])]
            layout = layouts[item["layout"]]
            answers.append(str(self._decide(layout, samples, consumers, config, item["now"], *last)))
        return answers

    def validity(self, request: dict[str, Any]) -> list[bool]:
        """Whether each configuration passes Pulsar's own check."""
        return [self._read_config(values) is not None for values in request["items"]]

    def trails(self, request: dict[str, Any]) -> list[list[Any]]:
        """For each trail what becomes of its layout, act by act; a refused act gives its kind of refusal."""
        return [self._follow(trail) for trail in request["items"]]

    def ranges(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """What a pair of ranges says of itself, of each other and of a hash."""
        return [self._pair(*item) for item in request["items"]]

    def changes(self, request: dict[str, Any]) -> list[bool]:
        """`isMaterialChange` of the last and the current rates."""
        return [
            bool(self._changed.invoke(None, self._stats(*last), self._stats(*now), self._double(threshold)))
            for last, now, threshold in request["items"]
        ]

    def _read_layout(self, document: dict[str, Any]) -> Any:
        return self._layout.fromMetadata(self._mapper.readValue(json.dumps(document), self._metadata.class_))

    def _read_config(self, values: dict[str, Any]) -> Any:
        """The configuration of the values, in the order of the record's fields; None if it is not valid."""
        durations = (self._seconds(values[name]) for name in ("split_cooldown", "merge_cooldown", "window"))
        numbers = (values[name] for name in ("max_segments", "min_segments", "max_dag_depth"))
        config = self._config(values["enabled"], *numbers, *durations, *values["split"], *values["merge"])
        try:
            return config.validated()
        except self._failure:
            return None

    def _follow(self, trail: dict[str, Any]) -> list[Any]:
        layout = self._read_layout(trail["first"])
        told: list[Any] = [self._describe(layout, trail)]
        for act, *arguments in trail["acts"]:
            try:
                layout = getattr(layout, act)(*arguments)
            except self._failure as refusal:
                told.append(type(refusal).__name__.rpartition(".")[2])
            else:
                told.append(self._describe(layout, trail))
        return told

    def _describe(self, layout: Any, trail: dict[str, Any]) -> dict[str, Any]:
        metadata = json.loads(str(self._mapper.writeValueAsString(layout.toMetadata(self._metadata()))))
        ids = [int(name) for name in metadata["segments"]]
        looked_at = ids[trail["look_at"] % len(ids)]
        return {
            "metadata": metadata,
            "depths": {str(i): int(layout.mergeDepth(i)) for i in ids},
            "lineage": sorted({int(s.segmentId()) for s in layout.getLineage(looked_at)}),
            "parents": [int(s.segmentId()) for s in layout.getParents(looked_at)],
            "children": [int(s.segmentId()) for s in layout.getChildren(looked_at)],
            "covering": [int(layout.findActiveSegment(h).segmentId()) for h in trail["hashes"]],
        }

    def _pair(self, one: list[int], other: list[int], value: int) -> dict[str, Any]:
        try:
            left, right = self._range(*one), self._range(*other)
        except self._failure as refusal:
            return {"refused": type(refusal).__name__.rpartition(".")[2]}
        return {
            "text": [str(left.toHexString()), str(right.toHexString())],
            "sizes": [int(left.size()), int(right.size())],
            "adjacent": bool(left.isAdjacentTo(right)),
            "order": int(left.compareTo(right)),
            "contains": bool(left.contains(value)),
            "halves": self._try(lambda: [str(half.toHexString()) for half in left.split()]),
            "joined": self._try(lambda: str(left.merge(right).toHexString())),
            "read": self._try(lambda: bool(self._range.fromHexString(left.toHexString()).equals(left))),
        }

    def _try(self, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except self._failure as refusal:
            return {"refused": type(refusal).__name__.rpartition(".")[2]}


def main() -> None:
    """Starts the JVM, then answers line by line until the end of the input."""
    import jpype

    options = (
        "-Xmx512m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
    )  # compiling more costs more than it saves
    jpype.startJVM(*options, classpath=[f"{sys.argv[1]}/*"], convertStrings=True)
    level = jpype.JClass("org.apache.logging.log4j.Level").OFF
    jpype.JClass("org.apache.logging.log4j.core.config.Configurator").setRootLevel(level)
    oracle = Oracle()
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(getattr(oracle, request["question"])(request)), flush=True)  # noqa: T201 -- the pipe
    os._exit(0)  # threads of Pulsar's libraries are no daemons


if __name__ == "__main__":
    main()
