"""Pulsar's `TransferShedder`, what feeds it, and the placement beside it, asked over a pipe: a line of JSON in, a line of JSON out.

The shedder wants a load manager's context: two stores, the settings and the registry of brokers are interfaces, and stand
here on plain maps. Asked without a `PulsarService`, as its own tests do it, it takes every bundle for transferable:
ownership, isolation and anti-affinity are not looked at. `BrokerLoadData.update` makes the averages that brokers
report, `TopKBundles.update` their lists of bundles. Run as `python transfer_worker.py JARS`; nothing of Cleave is in here.
"""

from __future__ import annotations

import json
from typing import Any

from balance_worker import run

_DATA = "org.apache.pulsar.policies.data.loadbalancer."
_MANAGER = "org.apache.pulsar.broker.loadbalance.extensions."
_USAGES = ("cpu", "memory", "directMemory", "bandwidthIn", "bandwidthOut")


class Oracle:
    """Holds the classes; `answer` speaks plain documents."""

    def __init__(self) -> None:
        import jpype

        self._java, self._proxy = jpype.JClass, jpype.JProxy
        java = self._java
        mapper = java("com.fasterxml.jackson.databind.ObjectMapper")()
        feature = java("com.fasterxml.jackson.databind.DeserializationFeature").FAIL_ON_UNKNOWN_PROPERTIES
        self._mapper = mapper.configure(feature, False)
        self._ordered = java("java.util.LinkedHashMap")
        factory, text = mapper.getTypeFactory(), java("java.lang.String").class_

        def map_of(name: str) -> Any:
            return factory.constructMapType(self._ordered.class_, text, java(name).class_)

        self._brokers = map_of(_DATA + "LocalBrokerData")
        self._stats = map_of(_DATA + "NamespaceBundleStats")
        self._longs = map_of("java.lang.Long")
        self._configuration = java("org.apache.pulsar.broker.ServiceConfiguration")
        self._top, self._bundle = (
            java(_MANAGER + "data.TopBundlesLoadData"),
            java(_MANAGER + "data.TopBundlesLoadData$BundleLoadData"),
        )
        unsafe = java("sun.misc.Unsafe")
        field = unsafe.class_.getDeclaredField("theUnsafe")
        field.setAccessible(True)
        self._unsafe = field.get(None)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """For each cycle the lists of bundles brokers would report, the averages, and what is unloaded whither."""
        conf = self._configuration()
        for setter, value in request["configuration"].items():
            getattr(conf, setter)(value)
        excluded = self._java("java.util.HashSet")()
        for name in request["excluded_namespaces"]:
            excluded.add(name)
        conf.setLoadBalancerSheddingExcludedNamespaces(excluded)
        counter = self._java(_MANAGER + "models.UnloadCounter")()
        shedder = self._java(_MANAGER + "scheduler.TransferShedder")(counter)
        placement = self._java(_MANAGER + "strategy.LeastResourceUsageWithWeight")()
        known: dict[str, Any] = {}
        cycles = []
        for cycle in request["cycles"]:
            now = self._java("java.lang.System").currentTimeMillis()
            loads = self._loads(cycle, conf, known, now)
            cycles.append(self._cycle(cycle, conf, now, loads, shedder, counter, placement))
        return {"cycles": cycles}

    def _loads(self, cycle: dict[str, Any], conf: Any, known: dict[str, Any], now: int) -> Any:
        """What brokers report of themselves, by name, told as long before now as the case says."""
        local = self._mapper.readValue(cycle["brokers"], self._brokers)
        loads = self._ordered()
        for name, told_ms_ago in cycle["told_ms_ago"].items():
            told_at = cycle["now_ms"] - told_ms_ago  # as the case has it; the shedder reads the clock
            loads.put(name, self._report(known, name, local.get(name), conf, told_at))
            self._set(loads.get(name), "updatedAt", now - told_ms_ago)
        return loads

    def _cycle(
        self,
        cycle: dict[str, Any],
        conf: Any,
        now: int,
        loads: Any,
        shedder: Any,
        counter: Any,
        placement: Any,
    ) -> dict[str, Any]:
        stats = self._mapper.readValue(cycle["bundles"], self._stats)
        tops = self._ordered()
        for name, bundles in cycle["tops"].items():
            data = self._top()
            for bundle in bundles:
                data.getTopBundlesLoadData().add(self._bundle(bundle, stats.get(bundle)))
            tops.put(name, data)
        recent = self._mapper.readValue(cycle["recent_bundles"], self._longs)
        stamps = self._java("java.util.HashMap")()
        for name, ms_ago in cycle["recent_brokers"].items():
            stamps.put(name, self._java("java.lang.Long")(now - ms_ago))
        before = self._skips(counter)
        context = self._context(conf, loads, tops, cycle["available"])
        unloads = [
            [str(one.sourceBroker()), str(one.serviceUnit()), one.destBroker().orElse(None)]
            for one in (
                decision.getUnload() for decision in shedder.findBundlesForUnloading(context, recent, stamps)
            )
        ]
        after = self._skips(counter)
        candidates = self._java("java.util.LinkedHashSet")()
        for name in cycle["candidates"]:
            candidates.add(name)
        return {
            "chosen": [str(placement.select(candidates, None, context).orElse("")) for _ in range(2)],
            "unloads": unloads,
            "skipped": [reason for reason, count in after.items() if count > before.get(reason, 0)],
            "usage": {name: loads.get(name).getWeightedMaxEMA() for name in cycle["told_ms_ago"]},
            "byte_rate": {name: loads.get(name).getMsgThroughputEMA() for name in cycle["told_ms_ago"]},
            "tops": {name: self._reported(conf, stats, owned) for name, owned in cycle["owned"].items()},
        }

    def _report(self, known: dict[str, Any], name: str, local: Any, conf: Any, told_at: int) -> Any:
        """The broker's own load data with a report taken in; an old one says nothing new."""
        data, before = known.get(name) or (self._java(_MANAGER + "data.BrokerLoadData")(), 0)
        known[name] = data, max(told_at, before)
        if told_at <= before:
            return data
        usage = self._java(_DATA + "SystemResourceUsage")()
        for resource in _USAGES:
            setter = f"set{resource[0].upper()}{resource[1:]}"
            getattr(usage, setter)(getattr(local, f"get{setter[3:]}")())
        rates = (
            local.getMsgThroughputIn(),
            local.getMsgThroughputOut(),
            local.getMsgRateIn(),
            local.getMsgRateOut(),
        )
        data.update(usage, *rates, 0, 0, conf)
        return data

    def _context(self, conf: Any, loads: Any, tops: Any, available: list[str]) -> Any:
        optional, future = (
            self._java("java.util.Optional"),
            self._java("java.util.concurrent.CompletableFuture"),
        )

        def store(held: Any) -> Any:
            methods = {"entrySet": held.entrySet, "get": lambda name: optional.ofNullable(held.get(name))}
            return self._proxy(_MANAGER + "store.LoadDataStore", dict=methods)

        lookup = self._ordered()
        for name in available:
            lookup.put(name, None)
        registry = self._proxy(
            _MANAGER + "BrokerRegistry",
            dict={"getAvailableBrokerLookupDataAsync": lambda: future.completedFuture(lookup)},
        )
        parts = {
            "brokerConfiguration": conf,
            "brokerLoadDataStore": store(loads),
            "topBundleLoadDataStore": store(tops),
            "brokerRegistry": registry,
        }
        methods = {name: (lambda part=part: part) for name, part in parts.items()}
        return self._proxy(_MANAGER + "LoadManagerContext", dict=methods)

    def _reported(self, conf: Any, stats: Any, owned: list[str]) -> list[str]:
        """What `TopKBundles` of a broker that owns these would report, in its order."""
        kind = self._java(_MANAGER + "models.TopKBundles")
        top, broker = (
            self._unsafe.allocateInstance(of.class_)
            for of in (kind, self._java("org.apache.pulsar.broker.PulsarService"))
        )
        self._set(broker, "config", conf)
        for name, value in (
            ("arr", self._java("java.util.ArrayList")()),
            ("loadData", self._top()),
            ("pulsar", broker),
        ):
            self._set(top, name, value)
        mine = self._ordered()
        for bundle in owned:
            mine.put(bundle, stats.get(bundle))
        top.update(mine, conf.getLoadBalancerMaxNumberOfBundlesInBundleLoadReport())
        return [str(one.bundleName()) for one in top.getLoadData().getTopBundlesLoadData()]

    def _set(self, instance: Any, name: str, value: Any) -> None:
        field = instance.getClass().getDeclaredField(name)
        field.setAccessible(True)
        field.set(instance, self._java("java.lang.Long")(value) if isinstance(value, int) else value)

    def _skips(self, counter: Any) -> dict[str, int]:
        """How often a cycle was skipped or failed, by reason."""
        label = self._java(_MANAGER + "models.UnloadDecision$Label")
        counts = counter.getBreakdownCounters()
        found: dict[str, int] = {}
        for one in (label.Skip, label.Failure):
            found |= json.loads(self._mapper.writeValueAsString(counts.get(one)))
        return found


if __name__ == "__main__":
    run(Oracle)
