"""Builds the configured data planes, by the name that is stored with each topic.

An adapter is imported only if its settings exist, so a machine without a broker does not need the broker's
client library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.dataplane.base import DataPlane
from controller.dataplane.load_settings import LoadSettings
from controller.dataplane.log_client import LogClient
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.domain.errors import InvalidInput, Unsupported
from controller.domain.formatting import shown
from controller.domain.names import MAX_NAME_BYTES

PLANE_NAMES = ("embedded", "pulsar", "pulsar_scalable")
"""Names of all data planes, configured or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaneSettings:
    """Addresses and limits of the data planes. If an address is None, its plane is not built. URLs contain
    secrets: never log them.
    """

    embedded_url: str | None = None
    call_timeout_seconds: float = 5.0
    """Longest duration of one call, except a reshape by a broker that keeps the layout, and a sample that reads
    metrics pages (`LoadSettings.page_seconds`).
    """
    reshape_timeout_seconds: float = 20.0
    """Longest duration of a split, merge or rebucket by a broker that keeps the layout, if it is more than
    `call_timeout_seconds`.
    """
    journal_url: str | None = None
    """Address of the journal. An embedded plane at the same address does not wait for the disk, because the
    journal does.
    """
    pulsar: PulsarAccess | None = None
    """The Pulsar cluster, with the secrets that it requires."""
    pulsar_load: LoadSettings = field(default_factory=LoadSettings)
    """Settings for reading load from the cluster's brokers."""


def configured(planes: Mapping[str, DataPlane], name: str, topic: str) -> DataPlane:
    """Return the data plane with this name. Raises Unsupported, with `topic` in the message, if `planes` (the
    data planes that are configured in this process) has none.
    """
    if name not in planes:
        raise Unsupported(
            f"topic {topic} is on data plane {name!r}, which is not configured here "
            f"(configured: {', '.join(sorted(planes)) or 'none'})"
        )
    return planes[name]


def demand_subscription(data_plane: str, name: str) -> None:
    """Raise InvalidInput if the data plane named `data_plane` refuses the subscription name `name`: an empty or too
    long name, or a name with characters that the data plane cannot store. The limits count bytes of UTF-8. The data
    plane need not be configured, and no call is made.

    Any data plane whose name begins with `pulsar` has Pulsar's limits. For any other unknown data plane, every name
    is valid.
    """
    if data_plane == "embedded":
        from controller.dataplane.embedded.names import checked

        checked("subscription", name)
    elif data_plane.startswith("pulsar"):
        from controller.dataplane.pulsar.names import subscription_path

        subscription_path(name)


def demand_dead_letters(data_plane: str, topic: str, subscription: str) -> None:
    """Raise InvalidInput if the name of the dead-letter log of this subscription of `topic` (`topic://...`) would be
    longer than a log's name may be, so that no dead letter could be stored. Does nothing for a data plane on which
    Cleave creates no dead-letter logs. Makes no call.
    """
    try:
        log = dead_letter_topic(data_plane, topic, subscription)
    except Unsupported:
        return
    size = len(log.encode(errors="replace"))
    if size > MAX_NAME_BYTES:
        raise InvalidInput(
            f"subscription {shown(subscription)} of {shown(topic)}: the name of its dead-letter log would have {size} bytes; "
            f"shorten one of the names, so that it has at most {MAX_NAME_BYTES}"
        )


def dead_letter_topic(data_plane: str, topic: str, subscription: str) -> str:
    """Return the backing topic of the subscription's dead-letter log; `topic` is the full name,
    `topic://...`. Raises Unsupported for a data plane on which Cleave creates no dead-letter logs.
    """
    if data_plane == "pulsar":
        from controller.dataplane.pulsar import names as pulsar_names

        return pulsar_names.dead_letter_topic(topic, subscription)
    if data_plane == "embedded":
        from controller.dataplane.embedded import names as embedded_names

        return embedded_names.dead_letter_topic(topic, subscription)
    raise Unsupported(f"{topic} is on data plane {data_plane!r}, which has no dead-letter logs")


def build_planes(settings: PlaneSettings) -> dict[str, DataPlane]:
    """Return every configured data plane by name. None of them connects before its first call. If `journal_url` is the
    same text as `embedded_url`, the embedded plane's calls on many logs do not wait for the disk. Raises InvalidInput
    for an invalid `embedded_url`, or an invalid `broker_url` of the load settings.
    """
    planes: dict[str, DataPlane] = {}
    if settings.embedded_url is not None:
        from controller.dataplane.embedded import EmbeddedDataPlane

        planes["embedded"] = EmbeddedDataPlane(
            settings.embedded_url,
            call_timeout_seconds=settings.call_timeout_seconds,
            shares_journal_server=settings.embedded_url == settings.journal_url,
        )
    if settings.pulsar is not None:
        from controller.dataplane.pulsar.plane import PulsarDataPlane
        from controller.dataplane.pulsar_scalable import PulsarScalableDataPlane

        planes["pulsar"] = PulsarDataPlane(
            settings.pulsar, call_timeout_seconds=settings.call_timeout_seconds, load=settings.pulsar_load
        )
        planes["pulsar_scalable"] = PulsarScalableDataPlane(
            settings.pulsar,
            call_timeout_seconds=settings.call_timeout_seconds,
            reshape_timeout_seconds=settings.reshape_timeout_seconds,
            load=settings.pulsar_load,
        )
    return planes


def build_log_client(name: str, settings: PlaneSettings) -> LogClient:
    """Create and return the client with which applications use the data plane of this name. The client connects at
    its first call, and the caller closes it.

    Raises Unsupported if the data plane is unknown, is not configured in `settings`, has no such client
    (`pulsar_scalable`), or lacks its libraries or the binary address of the brokers; and InvalidInput for an invalid
    `embedded_url`.
    """
    if name == "embedded" and settings.embedded_url is not None:
        try:
            from controller.dataplane.embedded import EmbeddedLogClient
        except ImportError as error:
            raise Unsupported(
                f"the libraries of the embedded logs are missing ({error}); run pip install 'pulsar-cleave[embedded]'"
            ) from error

        return EmbeddedLogClient(settings.embedded_url, call_timeout_seconds=settings.call_timeout_seconds)
    if name == "pulsar" and settings.pulsar is not None:
        try:
            from controller.dataplane.pulsar.log_client import PulsarLogClient
        except ImportError as error:
            raise Unsupported(
                f"the Pulsar client library is missing ({error}); run pip install pulsar-client"
            ) from error

        return PulsarLogClient(settings.pulsar, call_timeout_seconds=settings.call_timeout_seconds)
    raise Unsupported(
        f"data plane {name!r} is unknown or not configured here; known data planes: embedded, pulsar"
    )
