"""The calls of Airflow's REST API that the demo and the tests need.

Uses `/api/v2` of Airflow 3 with a bearer token, which an Airflow whose users are all admins gives to every client on
loopback. Not for production, where tokens belong to people.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import requests

from controller.devstack.failure import DevstackFailed
from controller.devstack.process import wait_until

_POLL_SECONDS: Final = 0.1
_COMPONENTS: Final = ("metadatabase", "scheduler", "triggerer", "dag_processor")
_OVER: Final = frozenset({"success", "failed"})


class AirflowApi:
    """A client of one Airflow at `url`; connects with the first call."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._token: str | None = None
        self._http = requests.Session()
        self._http.trust_env = False  # loopback never goes through a proxy

    def token(self) -> str:
        """Return a bearer token, which is kept for later calls. Raises requests.RequestException if Airflow does not answer or refuses."""
        if self._token is None:
            answer = self._http.get(f"{self.url}/auth/token", timeout=30)
            answer.raise_for_status()
            self._token = str(answer.json()["access_token"])
        return self._token

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON answer to `/api/v2<path>`, None for an empty answer. If the token is refused, get another token and send the call
        once more.

        Raises DevstackFailed with the answer's text for an error status, requests.RequestException without an answer.
        """
        answer = self._send(method, path, body)
        if answer.status_code == HTTPStatus.UNAUTHORIZED:
            self._token = None
            answer = self._send(method, path, body)
        if not answer.ok:
            raise DevstackFailed(
                f"Airflow answered {answer.status_code} to {method} {path}: {answer.text[:500]}"
            )
        return answer.json() if answer.content else None

    def is_healthy(self) -> bool:
        """Return True if the API answers and the database, scheduler, triggerer and DAG processor are healthy."""
        try:
            answer = self._http.get(f"{self.url}/api/v2/monitor/health", timeout=5)
        except requests.RequestException:
            return False
        if not answer.ok:
            return False
        health = answer.json()
        return all((health.get(name) or {}).get("status") == "healthy" for name in _COMPONENTS)

    def wait_dag(self, dag_id: str, *, timeout_seconds: float = 60) -> None:
        """Wait until the DAG processor has read the DAG. Raises DevstackFailed with the import errors if it has not in
        time.
        """

        def has_appeared() -> bool:
            return self._send("GET", f"/dags/{dag_id}").status_code == HTTPStatus.OK

        if not wait_until(has_appeared, seconds=timeout_seconds, poll_seconds=_POLL_SECONDS):
            errors = [error["stack_trace"] for error in self.call("GET", "/importErrors")["import_errors"]]
            raise DevstackFailed(f"DAG {dag_id} did not appear within {timeout_seconds:g} s: {errors}")

    def trigger(
        self, dag_id: str, *, conf: Mapping[str, Any] | None = None, dag_run_id: str | None = None
    ) -> str:
        """Start a run at once, with the id `dag_run_id` (None: Airflow chooses). Return its id. Raises the errors of `call`."""
        body: dict[str, Any] = {
            "logical_date": None,
            "conf": dict(conf or {}),
        }  # Airflow requires the key; its value may be null
        if dag_run_id is not None:
            body["dag_run_id"] = dag_run_id
        return str(self.call("POST", f"/dags/{dag_id}/dagRuns", body)["dag_run_id"])

    def wait_run(self, dag_id: str, dag_run_id: str, *, timeout_seconds: float = 120) -> str:
        """Poll the run until it ends, and return its state, `success` or `failed`. Raises DevstackFailed if the run does not end within
        `timeout_seconds`, and the errors of `call`.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            state = str(self.call("GET", f"/dags/{dag_id}/dagRuns/{dag_run_id}")["state"])
            if state in _OVER:
                return state
            if time.monotonic() > deadline:
                raise DevstackFailed(f"run {dag_run_id} of {dag_id} is {state} after {timeout_seconds:g} s")
            time.sleep(_POLL_SECONDS)

    def task_log(self, dag_id: str, dag_run_id: str, task_id: str) -> str:
        """Return the log of the first attempt at a task, as text."""
        path = f"/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/logs/1"
        content = self.call("GET", path)["content"]
        return "\n".join(
            str(line.get("event", line)) if isinstance(line, dict) else str(line) for line in content
        )

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> requests.Response:
        headers = {"Authorization": f"Bearer {self.token()}"}
        return self._http.request(method, f"{self.url}/api/v2{path}", json=body, headers=headers, timeout=60)
