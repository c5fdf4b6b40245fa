"""Namespaces on a test's broker, as an operator creates them and `cleave doctor --fix` configures them."""

from __future__ import annotations

from functools import partial
from typing import Any

import requests

from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.requirements import Namespaces
from tests.support.waiting import wait_until

TENANT = "cleave-tests"


def _made(url: str, body: dict[str, Any] | None) -> bool:
    """Return True if the object exists after the request. A broker fails one of two concurrent requests for the same object, which must
    be repeated.
    """
    answer = requests.put(url, json=body, timeout=30)
    if answer.status_code == 500 and "BadVersionException" in answer.text:
        return False
    assert answer.status_code in (204, 409), f"{url}: {answer.status_code} {answer.text[:200]}"
    return True


def make_namespace(access: PulsarAccess, name: str, *, fixed: bool = True) -> str:
    """Create the tenant and the namespace unless they exist, and return `tenant/name`; with `fixed`, configure the namespace as segments
    need it.
    """
    base = f"{access.admin_urls[0]}/admin/v2"

    def clusters() -> list[str]:
        return [entry for entry in requests.get(f"{base}/clusters", timeout=30).json() if entry != "global"]

    # A standalone broker is healthy a moment before it has made its cluster known.
    tenant = {"allowedClusters": wait_until(clusters, message="the broker's cluster"), "adminRoles": []}
    for path, body in ((f"tenants/{TENANT}", tenant), (f"namespaces/{TENANT}/{name}", None)):
        wait_until(partial(_made, f"{base}/{path}", body), message=path)
    if fixed:
        namespaces = Namespaces(access, call_timeout_seconds=30.0)
        unmet = namespaces.check(f"{TENANT}/{name}", fix=True)
        assert all(entry.set_now for entry in unmet if entry.demand.path is not None)
        namespaces.close()
    return f"{TENANT}/{name}"
