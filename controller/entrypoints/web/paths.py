"""The beginnings of paths, and what may stand in them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path

PREFIX = "/api/v1"
NAMES = "names of topics, subscriptions and consumers have no slash, no space and 500 characters at most"
TOPIC_PATH = PREFIX + "/topics/{tenant}/{namespace}/{topic}"
NAMESPACE_PATH = PREFIX + "/namespaces/{tenant}/{namespace}"
CONSUMER_PATH = TOPIC_PATH + "/subscriptions/{subscription}/consumers/{consumer}"
PRINTABLE = r"^[\x21-\x7e]+$"

_IS_NAME = r"^[^\s/\x00]+$"
Name = Annotated[str, Path(pattern=_IS_NAME, max_length=500, examples=["billing"])]
"""Of a subscription."""
ConsumerName = Annotated[str, Path(pattern=_IS_NAME, max_length=500, examples=["a"])]
Tenant = Annotated[str, Path(pattern=_IS_NAME, max_length=500, examples=["acme"])]
NamespaceName = Annotated[str, Path(pattern=_IS_NAME, max_length=500, examples=["shop"])]
TopicName = Annotated[str, Path(pattern=_IS_NAME, max_length=500, examples=["orders"])]
