"""The calls of Airflow's REST API that Cleave makes: post an asset event, and add a note to a run. Uses one
thread, one connection and short time-outs.

An asset exists in Airflow if a parsed DAG mentions it. Its id is looked up by name and cached.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote

import requests

from controller.domain.errors import Retryable
from controller.domain.http_proxies import Proxy, through

Content = TypeVar("Content")
LAYOUT_ASSET = "cleave_layout"
"""Name of the asset, whose URI is `cleave://layout`. The asset is partitioned: the key is the topic's name.
`cleave_provider.assets.cleave` declares the same asset for DAGs.
"""
LONGEST_KEY = 250
"""Maximum number of characters of a partition key in Airflow. Changes of a topic with a longer name are not posted."""
LONGEST_NOTE = 1_000
"""Maximum number of characters of a note in Airflow."""
UNKNOWN_SECONDS = 60.0
"""Seconds until an asset that Airflow does not know is looked up again."""
_CONNECT_SECONDS, _ANSWER_SECONDS = 2.0, 5.0


@dataclass(frozen=True, slots=True)
class AirflowLogin:
    """A bearer token, or a user and password to get a token with. Neither is needed for documents that
    Airflow serves without a login. `url` is the address of Airflow, without `/api/v2`; `proxy` is the address of
    an HTTP proxy, None to connect directly.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    proxy: str | None = field(default=None, repr=False)

    @property
    def is_set(self) -> bool:
        """True if there is a token, or a user to get one for."""
        return self.token is not None or self.username is not None


class AirflowRest:
    """Client of one Airflow installation. `answer_seconds` is the longest wait for a response. Connects with
    the first call. Not thread-safe. Raises InvalidInput at construction if the login's proxy is not an address.
    """

    def __init__(self, login: AirflowLogin, *, answer_seconds: float = _ANSWER_SECONDS) -> None:
        self._login, self._answer_seconds = login, answer_seconds
        self._url = login.url.rstrip("/")
        self._token = login.token
        self._asset_id: int | None = None
        self._next_lookup_at = 0.0
        self._proxy = None if login.proxy is None else Proxy.of(login.proxy)
        self._http = _session(self._proxy)

    def post(self, partition_key: str, extra: Mapping[str, Any]) -> bool:
        """Post one event of the asset `LAYOUT_ASSET`, with the content `extra`, for the partition `partition_key`,
        and return True. To an Airflow before 3.2, the event is posted without a partition key.

        Return False, and post nothing, if the key is longer than `LONGEST_KEY`, or if Airflow does not know the
        asset, so that no DAG waits for the event. An asset that a lookup did not find is looked up again after
        `UNKNOWN_SECONDS`. If Airflow has removed an asset that was found before, the next call looks the asset up.

        Raises Retryable, also for an error status and a rejected login. If the response was lost, the event may
        have been posted.
        """
        if len(partition_key) > LONGEST_KEY or self._find_asset() is None:
            return False
        body = {"asset_id": self._asset_id, "extra": dict(extra)}
        response = self._send("POST", "/assets/events", json={**body, "partition_key": partition_key})
        if response.status_code == HTTPStatus.UNPROCESSABLE_ENTITY and "partition_key" in response.text:
            # Before Airflow 3.2, events have no partitions.
            response = self._send("POST", "/assets/events", json=body)
        if response.status_code == HTTPStatus.NOT_FOUND:
            self._asset_id = None
            return False
        self._demand(response)
        return True

    def note(self, dag_id: str, run_id: str, sentence: str) -> None:
        """Append a sentence, as a paragraph of its own, to the note of the run `run_id` of the DAG `dag_id`. Nothing
        is written if the note already contains the sentence. The text that the note has is kept. The resulting note
        is cut after `LONGEST_NOTE` characters, so a long note may lose the sentence, or a part of the sentence.
        Raises Retryable, also if Airflow does not know the run or rejects the login.
        """
        path = f"/dags/{quote(dag_id, safe='')}/dagRuns/{quote(run_id, safe='')}"
        previous_note = self._content(self._send("GET", path), lambda run: str(run["note"] or ""))
        if sentence not in previous_note:
            note = f"{previous_note}\n\n{sentence}".strip()[:LONGEST_NOTE]
            self._demand(self._send("PATCH", path, params={"update_mask": "note"}, json={"note": note}))

    def read(self, path: str, read: Callable[[Any], Content]) -> Content:
        """Get the document at `path`, which begins with a slash and is relative to `/api/v2`, and return the result
        of `read` for the parsed JSON. Raises Retryable if there is no response, if the status is an error or a
        redirect, if the document is not JSON, and if `read` raises ValueError, LookupError or TypeError. Other errors
        of `read` are raised unchanged.
        """
        return self._content(self._send("GET", path), read)

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def _find_asset(self) -> int | None:
        """Return the id of the asset `LAYOUT_ASSET`; None if Airflow does not know the asset. A known id is cached,
        without a request, until `post` finds that Airflow has removed the asset. An unknown asset is looked up again
        after `UNKNOWN_SECONDS`; until then the result is None without a request. Raises Retryable.
        """
        if self._asset_id is None and time.monotonic() >= self._next_lookup_at:
            response = self._send("GET", "/assets", params={"name_pattern": LAYOUT_ASSET, "limit": 100})
            ids_by_name = self._content(
                response, lambda listing: {asset["name"]: int(asset["id"]) for asset in listing["assets"]}
            )
            self._asset_id = ids_by_name.get(LAYOUT_ASSET)
            self._next_lookup_at = time.monotonic() + UNKNOWN_SECONDS
        return self._asset_id

    def _send(self, method: str, path: str, **content: Any) -> requests.Response:
        """Send the request for `path`, relative to `/api/v2`, and return the response, whatever its status. `content`
        holds further arguments of `requests.Session.request`. The request carries the token, if there is one.

        If the login names a user, a token is first requested when there is none. If Airflow rejects the token (401)
        and the login names a user, the request is repeated once with another token; the second response is returned,
        even if it is a rejection. Raises Retryable if a request gets no response, or if the user gets no token.
        """
        response = self._once(method, f"/api/v2{path}", **content)
        if response.status_code == HTTPStatus.UNAUTHORIZED and self._login.username is not None:
            self._token = None
            response = self._once(method, f"/api/v2{path}", **content)
        return response

    def _once(self, method: str, path: str, **content: Any) -> requests.Response:
        """Send the request for `path`, such as `/api/v2/assets`, once, and return the response, whatever its status.
        The request carries the token, if there is one. If there is none and the login names a user, a token is
        requested first and kept for later requests. `content` holds further arguments of `requests.Session.request`.
        Raises Retryable without a response, or if no token was issued.
        """
        if self._token is None and self._login.username is not None:
            self._token = self._new_token()
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        return self._request(method, path, headers=headers, **content)

    def _new_token(self) -> str:
        """Return a token that Airflow issues for the user and password. Raises Retryable."""
        body = {"username": self._login.username, "password": self._login.password}
        response = self._request("POST", "/auth/token", json=body)
        return self._content(response, lambda document: str(document["access_token"]))

    def _request(self, method: str, path: str, **content: Any) -> requests.Response:
        """Send the request to `path` (relative to the address of Airflow) without adding a token, and return the
        response, whatever its status. Redirects are not followed. `content` holds further arguments of
        `requests.Session.request`. Raises Retryable if no response arrives within the time-outs.
        """
        try:
            return self._http.request(
                method,
                self._url + path,
                timeout=(_CONNECT_SECONDS, self._answer_seconds),
                allow_redirects=False,
                **content,
            )
        except requests.RequestException as error:
            raise Retryable(
                f"Airflow at {self._url}{through(self._proxy)} does not answer ({type(error).__name__})", 5.0
            ) from error

    def _content(self, response: requests.Response, read: Callable[[Any], Content]) -> Content:
        """Return the result of `read` for the response's document. Raises Retryable if the status is an error or a
        redirect, or if the document is not Airflow's (not JSON, or `read` raises ValueError, LookupError or TypeError),
        for example because a proxy has answered.
        """
        self._demand(response)
        try:
            return read(response.json())
        except (ValueError, LookupError, TypeError) as error:
            raise Retryable(
                f"{self._url} did not answer like Airflow to {response.request.method} "
                f"{response.request.path_url.partition('?')[0]}; check CLEAVE_AIRFLOW_URL, and the proxies in between",
                30.0,
            ) from error

    def _demand(self, response: requests.Response) -> requests.Response:
        """Return the response. Raises Retryable if its status is an error or a redirect."""
        if response.ok and not response.is_redirect:
            return response
        raise Retryable(
            f"Airflow at {self._url}{through(self._proxy)} answered {response.status_code} to {response.request.method} "
            f"{response.request.path_url.partition('?')[0]}; check CLEAVE_AIRFLOW_URL, CLEAVE_AIRFLOW_TOKEN or "
            "CLEAVE_AIRFLOW_USERNAME and CLEAVE_AIRFLOW_PASSWORD, and the rights of that user",
            30.0,
        )


def _session(proxy: Proxy | None) -> requests.Session:
    """Return a session that sends all requests through `proxy`; None: directly. The session ignores the proxies of
    the environment and the passwords of ~/.netrc, which would replace the token. Of the environment, it uses only the
    certificates that REQUESTS_CA_BUNDLE or else CURL_CA_BUNDLE names.
    """
    session = requests.Session()
    session.trust_env = False
    session.verify = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or True
    if proxy is not None:
        session.proxies = {"http": proxy.url, "https": proxy.url}
    return session
