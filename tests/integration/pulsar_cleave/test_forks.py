"""A client that was made and used before a fork serves the child, whose producers are the child's own."""

from __future__ import annotations

import json
import subprocess
import sys

import pulsar_cleave as cleave
from controller.devstack.serving import token_for
from tests.integration.pulsar_cleave.conftest import PASSWORD, Shop

_PROGRAM = """
import json, os, sys
import pulsar_cleave as cleave

worker, token, topic, user, password = json.loads(sys.argv[1])
login = cleave.EmbeddedAuth(user=user, password=password) if user else None
client = cleave.Client(worker, token, embedded=login, call_timeout_seconds=25)
producer = client.producer(topic)
producer.send(b"of the parent")
producer.flush()
child = os.fork()
if child == 0:
    try:
        producer.send(b"refused")
    except cleave.Terminal as error:
        assert "make one after the fork" in str(error)
        producer.close()  # does nothing here
        with client.producer(topic) as own:
            own.send(b"of the child")
        os._exit(0)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
producer.send(b"of the parent again")
producer.close()
client.close()
"""


def test_a_client_of_before_the_fork_serves_parent_and_child(shop: Shop) -> None:
    shop.bench.topic_with(segments=1)
    user = shop.login.user if shop.login is not None else ""
    given = json.dumps([shop.worker, token_for(shop.topic), shop.topic, user, PASSWORD])

    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, given], capture_output=True, text=True, timeout=120, check=False
    )

    assert done.returncode == 0, done.stderr[-3000:]
    found: list[cleave.Message] = []
    with shop.client.stream_consumer(shop.topic, "billing", name="billing-1") as consumer:
        while len(found) < 3:
            found += consumer.receive_many(10, 60)
    assert sorted(one.data for one in found) == [b"of the child", b"of the parent", b"of the parent again"]
