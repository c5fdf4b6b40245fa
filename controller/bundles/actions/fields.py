"""Fields that requests about bundles share, and the split policy of a namespace as an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import Field

from controller.actions.fields import from_text
from controller.actions.responses import Answer, Row
from controller.bundles.domain.ring import NamespaceBundle
from controller.bundles.domain.splitting.policy import SplitPolicy
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


class SplitPolicyDocument(Answer):
    """The split policy of a namespace."""

    namespace: str = Field(examples=["acme/shop"])
    effective: dict[str, Any] = Field(description="Every parameter in force.", examples=[{"max_topics": 500}])
    overrides: dict[str, Any] = Field(
        description="Parameters that the namespace sets.", examples=[{"max_topics": 500}]
    )

    @classmethod
    def of(cls, namespace: str, overrides: Mapping[str, Any], **fields: Any) -> Self:
        """Return the document of a namespace that sets the parameters `overrides`, with further `fields`. Raises InvalidPolicy for
        parameters that are unknown, of a wrong type or not valid together.
        """
        effective = SplitPolicy.from_document(overrides).to_document()
        return cls(namespace=namespace, effective=effective, overrides=overrides, **fields)

    def sentence(self) -> str:
        """Return one sentence about the answer."""
        return self.namespace

    def rows(self) -> Sequence[Row]:
        """Return a row for each parameter in force. `from` in the row is `namespace` for a parameter that the
        namespace sets, otherwise `default`.
        """
        return [
            {"parameter": name, "value": value, "from": "namespace" if name in self.overrides else "default"}
            for name, value in self.effective.items()
        ]
