"""What a run of bundle load must answer, in plain Python over the same rows, with the domain's own look-up of bundles.

Written apart from the Spark SQL, one bundle and one topic at a time, so that an error in one shows against the other.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from controller.bundles.domain.load import BrokerResources, ResourceUsage, max_usage
from controller.bundles.domain.ring import NamespaceBundles, topic_hash
from spark_jobs.bundle_figures import COUNTS, RATES, SIGNALS, ReportWindow

Row = dict[str, Any]
FIGURES = (*RATES, *COUNTS, "cache_size_bytes")
LIMITS = ("max_topics", "max_sessions", "max_msg_rate", "max_byte_rate")


@dataclass(frozen=True)
class RunInputs:
    """One run's inputs as rows: landed reports, what is stored, limits of namespaces."""

    topics: list[Row] = field(default_factory=list)
    owned: list[Row] = field(default_factory=list)
    boundaries: list[Row] = field(default_factory=list)
    brokers: list[Row] = field(default_factory=list)
    stored_boundaries: list[Row] = field(default_factory=list)
    stored_bundles: list[Row] = field(default_factory=list)
    stored_namespaces: list[Row] = field(default_factory=list)
    stored_brokers: list[Row] = field(default_factory=list)
    limits: list[Row] = field(default_factory=list)


class Answer:
    """All tables of a run, each as rows by key."""

    def __init__(self, given: RunInputs, window: ReportWindow) -> None:
        self._given, self._window = given, window
        self.reports = self._reports()
        self._clusters = {cluster for cluster, _ in self.reports}
        self._stored_brokers = {(b["cluster"], b["broker"]): b for b in given.stored_brokers}
        self._cuts()
        self._place_topics()
        self._own()
        self._judge()
        self._sum_namespaces()
        self._sum_brokers()
        self._spread()

    def _reports(self) -> dict[tuple[str, str], int]:
        """Instant of the newest whole report of each broker."""
        found: dict[tuple[str, str], int] = {}
        for row in self._given.brokers:
            at, key = row["instant_ms"], (row["cluster"], row["broker"])
            told = [t for t in self._given.topics if _source(t) == _source(row)]
            if self._window.start_ms < at <= self._window.end_ms and len(told) == row["topic_count"]:
                found[key] = max(found.get(key, 0), at)
        return found

    def _counts(self, row: Row) -> bool:
        return bool(self.reports.get((row["cluster"], row["broker"])) == row["instant_ms"])

    def _cuts(self) -> None:
        self._lists: dict[tuple[str, str], list[int]] = {}
        self._versions: dict[tuple[str, str], int] = {}
        self.boundaries: dict[Any, Row] = {}
        stored = {(s["cluster"], s["namespace"]): s for s in self._given.stored_boundaries}
        landed: dict[tuple[str, str], Row] = {}
        for row in self._given.boundaries:
            key = (row["cluster"], row["namespace"])
            if row["instant_ms"] <= self._window.end_ms and (
                key not in landed or row["instant_ms"] > landed[key]["instant_ms"]
            ):
                landed[key] = row
        for key in stored.keys() | landed.keys():
            if key[0] not in self._clusters:
                continue
            old, new = stored.get(key), landed.get(key)
            is_newer = new is not None and (old is None or new["instant_ms"] > old["boundaries_at_ms"])
            chosen = new if is_newer else old
            assert chosen is not None
            self._lists[key] = chosen["boundaries"]
            self._versions[key] = 0 if old is None else old["row_version"]
            if is_newer and new is not None and (old is None or new["boundaries"] != old["boundaries"]):
                self.boundaries[key] = {
                    "boundaries": new["boundaries"],
                    "boundaries_at_ms": new["instant_ms"],
                    "seen_row_version": self._versions[key],
                }

    def _place_topics(self) -> None:
        """Every topic once, the later report of two, in its bundle."""
        latest: dict[tuple[str, str], Row] = {}
        for row in filter(self._counts, self._given.topics):
            key = (row["cluster"], row["topic"])
            if key not in latest or _told(row) > _told(latest[key]):
                latest[key] = row
        self._placed: dict[tuple[str, str, int], list[Row]] = {}
        for (cluster, topic), row in latest.items():
            edges = self._lists.get((cluster, row["namespace"]))
            if edges:
                bundle = NamespaceBundles(row["namespace"], tuple(edges)).bundle_at(topic_hash(topic))
                self._placed.setdefault((cluster, row["namespace"], bundle.lower), []).append(row)

    def _own(self) -> None:
        self._owners: dict[tuple[str, str, int, int], Row] = {}
        for row in filter(self._counts, self._given.owned):
            key = (row["cluster"], row["namespace"], row["lower_bound"], row["upper_bound"])
            if key not in self._owners or _told(row) > _told(self._owners[key]):
                self._owners[key] = row

    def _judge(self) -> None:
        stored = {
            (s["cluster"], s["namespace"], s["lower_bound"]): s
            for s in self._given.stored_bundles
            if s["cluster"] in self._clusters
        }
        self.judged: dict[Any, Row] = {}
        self.bundles: dict[Any, Row] = {}
        there = {(*key, low): high for key, edges in self._lists.items() for low, high in pairwise(edges)}
        for key in there.keys() | stored.keys():
            old = stored.get(key)
            versions = {
                "seen_row_version": 0 if old is None else old["row_version"],
                "seen_namespace_version": 0 if key[:2] in self.boundaries else self._versions.get(key[:2]),
            }
            if key not in there:
                assert old is not None
                self.bundles[key] = _figures_of(old) | versions | {"gone": True}
                continue
            new = self._figures(key, there[key])
            if old is not None and self._is_silent(new, old):
                self.judged[key] = _figures_of(old)
                continue
            self.judged[key] = new
            if old is None or any(new[name] != old[name] for name in (*FIGURES, "broker", "upper_bound")):
                self.bundles[key] = new | versions | {"gone": False}

    def _figures(self, key: tuple[str, str, int], upper: int) -> Row:
        inside = sorted(self._placed.get(key, ()), key=lambda row: (topic_hash(row["topic"]), row["topic"]))
        sums: Row = {"upper_bound": upper} | dict.fromkeys(RATES, 0.0) | dict.fromkeys(COUNTS[1:], 0)
        for row in inside:
            for name in (*RATES, *COUNTS[1:]):
                sums[name] += row[name]
        told = max((_told(row) for row in inside), default=None)
        owner = self._owners.get((*key, upper))
        at, broker = _told(owner) if owner else (told or (self._window.end_ms, None))
        return sums | {
            "topic_count": len(inside),
            "broker": broker,
            "cache_size_bytes": owner["cache_size_bytes"] if owner else 0,
            "modified_at_ms": at,
        }

    def _is_silent(self, new: Row, old: Row) -> bool:
        """Its owner is known, said nothing, and is not gone yet."""
        return any(
            new["broker"] is None
            and old["upper_bound"] == new["upper_bound"]
            and (b["cluster"], b["broker"]) not in self.reports
            and b["observed_at_ms"] > self._window.gone_ms
            for b in self._given.stored_brokers
            if (b["cluster"], b["broker"]) == (old["cluster"], old["broker"])
        )

    def _sum_namespaces(self) -> None:
        stored = {(s["cluster"], s["namespace"]): s for s in self._given.stored_namespaces}
        self.namespaces: dict[Any, Row] = {}
        for key in self._lists:
            inside = [self.judged[k] for k in sorted(self.judged) if k[:2] == key]
            row = _sums(inside, ("topic_count",)) | {
                "bundle_count": len(inside),
                "peak_msg_rate": max(b["msg_rate_in"] + b["msg_rate_out"] for b in inside),
                "peak_byte_rate": max(b["byte_rate_in"] + b["byte_rate_out"] for b in inside),
                "peak_topic_count": max(b["topic_count"] for b in inside),
            }
            old = stored.get(key)
            if old is None or any(row[name] != old[name] for name in row):
                at = max(b["modified_at_ms"] for b in inside)
                version = 0 if old is None else old["row_version"]
                self.namespaces[key] = row | {"modified_at_ms": at, "seen_row_version": version}

    def _sum_brokers(self) -> None:
        self.brokers: dict[Any, Row] = {}
        for row in filter(self._counts, self._given.brokers):
            key = (row["cluster"], row["broker"])
            owned = [self.judged[k] for k in sorted(self.judged) if (k[0], self.judged[k]["broker"]) == key]
            old = self._stored_brokers.get(key)
            if old is None or row["instant_ms"] > old["observed_at_ms"]:
                self.brokers[key] = (
                    _system(row)
                    | _sums(owned, COUNTS)
                    | {
                        "bundle_count": len(owned),
                        "observed_at_ms": row["instant_ms"],
                        "seen_row_version": 0 if old is None else old["row_version"],
                        "gone": False,
                    }
                )
        for key, old in self._stored_brokers.items():
            if (
                key[0] in self._clusters
                and key not in self.reports
                and old["observed_at_ms"] <= self._window.gone_ms
            ):
                kept = {
                    name: value
                    for name, value in old.items()
                    if name not in ("cluster", "broker", "row_version")
                }
                self.brokers[key] = kept | {"seen_row_version": old["row_version"], "gone": True}

    def _spread(self) -> None:
        self.clusters: dict[Any, Row] = {}
        for cluster in self._clusters:
            present = {key: row for key, row in self._stored_brokers.items() if key[0] == cluster}
            present |= {key: row for key, row in self.brokers.items() if key[0] == cluster}
            rows = [row for _, row in sorted(present.items()) if not row.get("gone")]
            figures = {
                "usage": [_usage(row) for row in rows],
                "msg_rate": [row["msg_rate_in"] + row["msg_rate_out"] for row in rows],
                "byte_rate": [row["byte_rate_in"] + row["byte_rate_out"] for row in rows],
            }
            carried = [bundle for key, bundle in self.judged.items() if key[0] == cluster]
            self.clusters[cluster] = {
                "window_end_ms": self._window.end_ms,
                "broker_count": len(rows),
                "bundle_count": len(carried),
                "topic_count": sum(bundle["topic_count"] for bundle in carried),
            } | {
                f"{name}_{kind}": of(values)
                for name, values in figures.items()
                for kind, of in (("mean", statistics.fmean), ("stddev", statistics.pstdev))
            }

    @property
    def hot_topics(self) -> set[tuple[str, str, int, str, int, str]]:
        """Cluster, namespace, bundle, topic, hash and broker of every topic reported in a bundle above a limit."""
        found = set()
        for row in filter(self._counts, self._given.topics):
            key = (row["cluster"], row["namespace"])
            edges = self._lists.get(key)
            if not edges:
                continue
            place = topic_hash(row["topic"])
            lower = NamespaceBundles(row["namespace"], tuple(edges)).bundle_at(place).lower
            bundle = self.judged[(*key, lower)]
            if any(self._is_hot(bundle, limit) for limit in self._given.limits if _key(limit) == key):
                found.add((*key, lower, row["topic"], place, row["broker"]))
        return found

    def _is_hot(self, bundle: Row, limit: Row) -> bool:
        sessions = bundle["producer_count"] + bundle["consumer_count"]
        return bool(
            bundle["topic_count"] > limit["max_topics"]
            or (limit["max_sessions"] > 0 and sessions > limit["max_sessions"])
            or bundle["msg_rate_in"] + bundle["msg_rate_out"] > limit["max_msg_rate"]
            or bundle["byte_rate_in"] + bundle["byte_rate_out"] > limit["max_byte_rate"]
        )


def _key(row: Row) -> tuple[str, str]:
    return row["cluster"], row["namespace"]


def _source(row: Row) -> tuple[str, str, int]:
    return row["cluster"], row["broker"], row["instant_ms"]


def _told(row: Row) -> tuple[int, str]:
    return row["instant_ms"], row["broker"]


def _figures_of(stored: Row) -> Row:
    return {name: stored[name] for name in ("upper_bound", "broker", *FIGURES, "modified_at_ms")}


def _sums(bundles: list[Row], counts: tuple[str, ...]) -> Row:
    """In the order given, as a sum that begins with the first."""
    rates: Row = dict.fromkeys(RATES, 0.0)
    for bundle in bundles:
        for rate in RATES:
            rates[rate] += bundle[rate]
    return rates | {count: sum(bundle[count] for bundle in bundles) for count in counts}


def _system(row: Row) -> Row:
    names = [f"{signal}_{part}" for signal in SIGNALS for part in ("usage", "limit")]
    return {name: row[name] for name in (*names, "report", "version")}


def _usage(row: Row) -> float:
    return max_usage(
        BrokerResources(**{s: ResourceUsage(row[f"{s}_usage"], row[f"{s}_limit"]) for s in SIGNALS})
    )
