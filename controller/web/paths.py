"""Prefixes of paths, and the types of path parameters."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path

from controller.actions.fields import PATH_FORMS, name_of
from controller.domain.names import LONGEST_NAME

PREFIX = "/api/v1"
NAMES = (
    "names of topics, subscriptions and consumers have no slash, no space and no invisible character, are not only dots, and have "
    f"{LONGEST_NAME} characters at most"
)
TOPIC_PATH = f"{PREFIX}/topics/{PATH_FORMS['topic']}"
NAMESPACE_PATH = f"{PREFIX}/namespaces/{PATH_FORMS['namespace']}"
CONSUMER_PATH = TOPIC_PATH + "/subscriptions/{subscription}/consumers/{consumer}"
PRINTABLE = r"^[\x21-\x7e]+$"

_IS_NAME = r"^[^\s/\x00]+$"
Name = Annotated[
    str, Path(pattern=_IS_NAME, max_length=LONGEST_NAME, examples=["billing"]), name_of("subscription")
]
"""Name of a subscription."""
ConsumerName = Annotated[
    str, Path(pattern=_IS_NAME, max_length=LONGEST_NAME, examples=["a"]), name_of("consumer")
]
Tenant = Annotated[str, Path(pattern=_IS_NAME, max_length=LONGEST_NAME, examples=["acme"]), name_of("tenant")]
NamespaceName = Annotated[
    str, Path(pattern=_IS_NAME, max_length=LONGEST_NAME, examples=["shop"]), name_of("namespace")
]
TopicName = Annotated[
    str, Path(pattern=_IS_NAME, max_length=LONGEST_NAME, examples=["orders"]), name_of("topic")
]
BundleName = Annotated[
    str,
    Path(
        pattern=_IS_NAME,
        max_length=100,
        examples=["0x00000000_0x40000000"],
        description="Range of the bundle, or LARGEST or HOT of the namespace.",
    ),
]
