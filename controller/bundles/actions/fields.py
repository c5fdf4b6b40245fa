"""Fields that requests about bundles share."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from controller.actions.fields import from_text
from controller.bundles.domain.ring import NamespaceBundle
from controller.bundles.domain.splitting.thresholds import BUNDLE_CHOICES
from controller.domain.names import demand_namespace
from controller.domain.pulsar_names import checked_namespace


def _namespace(text: str) -> str:
    return demand_namespace(checked_namespace(text))


def _bundle_text(text: str) -> str:
    """Return the text of a bundle in its usual form. The texts `tenant/namespace/LARGEST` and `tenant/namespace/HOT`,
    which choose a bundle later, are kept. Whether the bundle exists is not checked. Raises InvalidInput for a text
    that names neither a bundle nor such a choice.
    """
    namespace, _, choice = text.rpartition("/")
    if choice in BUNDLE_CHOICES:
        return f"{_namespace(namespace)}/{choice}"
    return str(NamespaceBundle.parse(text))


BundleNamespace = Annotated[
    str,
    Field(
        description="tenant/namespace.",
        examples=["acme/shop"],
        json_schema_extra={"pattern": r"^\s*[^/\s]+/[^/\s]+\s*$"},
    ),
    from_text(_namespace),
]
BundleText = Annotated[
    str,
    Field(
        description="tenant/namespace/0x00000000_0x40000000, or tenant/namespace/LARGEST or HOT.",
        examples=["acme/shop/0x00000000_0x40000000"],
        json_schema_extra={"pattern": r"^\s*[^/\s]+/[^/\s]+/(0x[0-9a-f]{8}_0x[0-9a-f]{8}|LARGEST|HOT)\s*$"},
    ),
    from_text(_bundle_text),
]
