"""Pulsar's own shedders and placements, asked over a pipe: a line of JSON in, a line of JSON out.

A process of its own, since a JVM cannot be started twice in one and the other tests have theirs. Run as
`python balance_worker.py JARS`. Each request is a run of cycles of one cluster with one configuration: the shedders
live as long as the request. Nothing of Cleave is in here.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

_DATA = "org.apache.pulsar.policies.data.loadbalancer."
_IMPL = "org.apache.pulsar.broker.loadbalance.impl."
SHEDDERS = {
    "overload": "OverloadShedder",
    "threshold": "ThresholdShedder",
    "uniform": "UniformLoadShedder",
    "avg": "AvgShedder",
}


class Oracle:
    """Holds the classes; `answer` speaks plain documents."""

    def __init__(self) -> None:
        import jpype

        def java(name: str) -> Any:
            return jpype.JClass(name)

        self._java = java
        mapper = java("com.fasterxml.jackson.databind.ObjectMapper")()
        feature = java("com.fasterxml.jackson.databind.DeserializationFeature").FAIL_ON_UNKNOWN_PROPERTIES
        self._mapper = mapper.configure(feature, False)
        factory = mapper.getTypeFactory()
        text = java("java.lang.String").class_
        ordered = java("java.util.LinkedHashMap").class_

        def map_of(name: str) -> Any:
            return factory.constructMapType(ordered, text, java(name).class_)

        self._brokers = map_of(_DATA + "LocalBrokerData")
        self._bundles = map_of(_DATA + "BundleData")
        self._longs = map_of("java.lang.Long")
        self._names = factory.constructCollectionType(java("java.util.TreeSet").class_, text)
        self._broker_data = java(_DATA + "BrokerData")
        self._load_data = java("org.apache.pulsar.broker.loadbalance.LoadData")
        self._configuration = java("org.apache.pulsar.broker.ServiceConfiguration")
        self._seeds = java(_DATA + "NamespaceBundleStats")()
        for name, value in (
            ("msgRateIn", 50.0),
            ("msgRateOut", 50.0),
            ("msgThroughputIn", 50_000.0),
            ("msgThroughputOut", 50_000.0),
        ):
            setattr(self._seeds, name, value)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """For each cycle what each shedder sheds, and what the placements choose at the end of it."""
        conf = self._configuration()
        for setter, value in request["configuration"].items():
            getattr(conf, setter)(value)
        shedders = {name: self._java(_IMPL + kind)() for name, kind in SHEDDERS.items()}
        placements = {
            name: self._java(_IMPL + name)()
            for name in (
                "LeastLongTermMessageRate",
                "LeastResourceUsageWithWeight",
                "RoundRobinBrokerSelector",
            )
        }
        cycles = []
        for cycle in request["cycles"]:
            data = self._load(cycle)
            shed = {name: self._shed(shedder, data, conf) for name, shedder in shedders.items()}
            cycles.append(
                {"shed": shed, "placed": self._place(cycle, data, conf, placements, shedders["avg"], shed)}
            )
        return {"cycles": cycles}

    def _load(self, cycle: dict[str, Any]) -> Any:
        data = self._load_data()
        bundles = self._mapper.readValue(cycle["bundles"], self._bundles)
        data.getBundleData().putAll(bundles)
        brokers, known = self._mapper.readValue(cycle["brokers"], self._brokers), data.getBrokerData()
        for name in cycle["names"]:
            local = brokers.get(name)
            broker = self._broker_data(local)
            broker.getTimeAverageData().reset(local.getBundles(), bundles, self._seeds)
            known.put(name, broker)
        data.getRecentlyUnloadedBundles().putAll(self._mapper.readValue(cycle["recent"], self._longs))
        return data

    def _shed(self, shedder: Any, data: Any, conf: Any) -> dict[str, list[str]]:
        found = shedder.findBundlesForUnloading(data, conf)
        shed: dict[str, list[str]] = json.loads(self._mapper.writeValueAsString(found.asMap()))
        return shed

    def _place(
        self,
        cycle: dict[str, Any],
        data: Any,
        conf: Any,
        placements: dict[str, Any],
        avg: Any,
        shed: dict[str, dict[str, list[str]]],
    ) -> dict[str, Any]:
        candidates = self._mapper.readValue(cycle["candidates"], self._names)
        known = data.getBundleData()
        bundle = known.get(cycle["spare"])
        averages = {name: data.getBrokerData().get(name).getTimeAverageData() for name in cycle["names"]}
        long_term = {n: a.getLongTermMsgRateIn() + a.getLongTermMsgRateOut() for n, a in averages.items()}
        everybody = data.getBrokerData().keySet()
        planned = {
            name: str(avg.selectBroker(everybody, known.get(name), data, conf).get())
            for bundles in shed["avg"].values()
            for name in bundles
        }
        chosen = {
            name: [str(p.selectBroker(candidates, bundle, data, conf).orElse("")) for _ in range(2)]
            for name, p in placements.items()
        }
        return {"long_term": long_term, "planned": planned, "chosen": chosen}


def _quiet() -> None:
    """Pulsar's classes log each decision; a thousandth of the time goes into the answer otherwise."""
    import jpype

    level = jpype.JClass("org.apache.logging.log4j.Level").OFF
    jpype.JClass("org.apache.logging.log4j.core.config.Configurator").setRootLevel(level)


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answers line by line until the end of the input."""
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)  # noqa: T201 -- the pipe is the interface


def run(oracle: Callable[[], Any]) -> None:
    """Starts the JVM, then serves with what `oracle` makes in it."""
    import jpype

    jpype.startJVM(
        "-Xmx512m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        classpath=[f"{sys.argv[1]}/*"],
        convertStrings=True,
    )
    _quiet()
    serve(oracle().answer)
    sys.stdout.flush()
    os._exit(0)  # threads of Pulsar's libraries are no daemons


if __name__ == "__main__":
    run(Oracle)
