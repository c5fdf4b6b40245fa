"""Measures the time and memory that the counters of 100,000 watched topics take from one broker's metrics page.

The recorded page of a real broker is multiplied (see `broker_page`), served chunked by a separate process, and read by a new process as
the collector does: all topics in one call, twice, so that the second read also includes the remains of the first. For comparison: the
cost of the relevant lines for the parser of `prometheus_client` once they are found. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import requests
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.broker_page import multiplied, topic
from benchmarks.machine import machine
from controller.dataplane.pulsar_load.brokers import BrokerList
from controller.dataplane.pulsar_load.scraper import CounterScraper

CHUNK_BYTES = 1 << 20
GOAL = {"seconds": 10.0, "peak_rss_mib": 300.0}


class Broker(BaseHTTPRequestHandler):
    """A broker that lists itself, and serves the file as its metrics page."""

    protocol_version = "HTTP/1.1"
    page = Path()

    def do_GET(self) -> None:
        """Answer one request: the page in chunks for `/metrics/`, the list of brokers for any other path."""
        self.send_response(200)
        if self.path == "/metrics/":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self._send_page()
        else:
            body = json.dumps([self.headers["Host"]]).encode()
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def _send_page(self) -> None:
        size = self.page.stat().st_size
        with self.page.open("rb") as file:
            for begin in range(0, size, CHUNK_BYTES):
                length = min(CHUNK_BYTES, size - begin)
                self.wfile.write(b"%x\r\n" % length)
                self.wfile.flush()
                sent = 0
                while sent < length:
                    sent += os.sendfile(self.connection.fileno(), file.fileno(), begin + sent, length - sent)
                self.wfile.write(b"\r\n")
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *_: object) -> None:  # noqa: A002 - the base class's name
        """Log nothing."""


def serve(page: Path) -> None:
    """Print the port, and serve until the process is killed."""
    Broker.page = page
    server = ThreadingHTTPServer(("127.0.0.1", 0), Broker)
    print(server.server_address[1], flush=True)
    server.serve_forever()


def measure(url: str, topics: int) -> dict[str, object]:
    """Read the page twice in this process, which should be new. Return seconds, processor seconds and memory."""
    watched = [topic(number) for number in range(topics)]
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    session = requests.Session()
    load = CounterScraper(session, BrokerList(session, [url]), deadline_seconds=120.0)
    taken, busy, sampled = [], [], []
    for _ in range(2):
        began, busy_before = time.perf_counter(), time.process_time()
        sampled.append(len(load.sample(watched)))
        taken.append(round(time.perf_counter() - began, 2))
        busy.append(round(time.process_time() - busy_before, 2))
    load.close()
    return {
        "first_seconds": taken[0],
        "second_seconds": taken[1],
        "cpu_seconds": busy,
        "sampled": sampled[-1],
        "peak_rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "rss_before_mib": round(before_kib / 1024, 1),
        "load_average": round(os.getloadavg()[0], 1),
        "nice": os.nice(0),
    }


def library_microseconds(lines: int = 5_000) -> float:
    """Return the processor time of one counter's line in the parser of `prometheus_client`, in microseconds."""
    wanted = (b"pulsar_in_messages_total{", b"pulsar_out_bytes_total{")
    text = b"".join(
        line
        for piece in multiplied(lines // 2)
        for line in piece.splitlines(keepends=True)
        if line.startswith(wanted) and b"orders0" in line
    ).decode()
    began = time.process_time()
    samples = sum(len(family.samples) for family in text_string_to_metric_families(text))
    return round((time.process_time() - began) / samples * 1e6, 1)


def figures(directory: Path, topics: int) -> dict[str, object]:
    """Write a page to disk, serve it from another process, and return the figures of a new reader process. Kills the server at the end."""
    page = directory / "metrics"
    with page.open("wb") as file:
        for piece in multiplied(topics):
            file.write(piece)
    this = [sys.executable, "-m", "benchmarks.bench_scrape", "--topics", str(topics)]
    server = subprocess.Popen([*this, "--serve", page], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        url = f"http://127.0.0.1:{port}"
        done = subprocess.run([*this, "--measure", url], check=True, capture_output=True, text=True)
    finally:
        server.kill()
        server.wait()
    measured = json.loads(done.stdout.splitlines()[-1])
    return {
        "page_mib": round(page.stat().st_size / 2**20),
        **measured,
        "cpu_microseconds_a_line": round(min(measured["cpu_seconds"]) / (4 * topics) * 1e6, 1),
        "library_cpu_microseconds_a_line": library_microseconds(),
    }


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=100_000, help="topics on the page, all of them watched")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
    elif options.measure:
        print(json.dumps(measure(options.measure, options.topics)))
    else:
        with tempfile.TemporaryDirectory() as directory:
            document = figures(Path(directory), options.topics)
        print(
            json.dumps(
                {
                    "benchmark": "scrape",
                    "topics": options.topics,
                    **document,
                    "goal": GOAL,
                    "machine": machine(),
                }
            )
        )


if __name__ == "__main__":
    main()
