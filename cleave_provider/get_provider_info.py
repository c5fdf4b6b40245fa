"""Describes the provider to Airflow: its connection types with their forms, and its classes."""

from __future__ import annotations

from typing import Any

_INTEGRATION = "Cleave"
_SSL_MODES = ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]


def _text(label: str, description: str, **schema: Any) -> dict[str, Any]:
    """Return a text field of a form, which may be empty."""
    return {"label": label, "description": description, "schema": {"type": ["string", "null"], **schema}}


_CLEAVE: dict[str, Any] = {
    "connection-type": "cleave",
    "hook-class-name": "cleave_provider.hooks.cleave.CleaveHook",
    "hook-name": "Cleave",
    "ui-field-behaviour": {
        "relabeling": {"schema": "Database"},
        "placeholders": {
            "host": "db-1.example.org,db-2.example.org",
            "port": "5432",
            "schema": "cleave",
            "login": "cleave_airflow",
            "extra": '{"target_session_attrs": "read-write", "landing_url": "s3://bucket/landing", "sslrootcert": "/etc/ssl/db.pem"}',
        },
    },
    "conn-fields": {
        "sslmode": _text("TLS", "Mode of TLS, as in libpq. Empty: prefer.", enum=[None, *_SSL_MODES]),
        "pulsar_admin_conn_id": _text(
            "Connection of Pulsar", "Id of a connection of type pulsar_admin, for topics on Pulsar."
        ),
    },
}
_PULSAR_ADMIN: dict[str, Any] = {
    "connection-type": "pulsar_admin",
    "hook-class-name": "cleave_provider.hooks.pulsar_admin.PulsarAdminHook",
    "hook-name": "Pulsar (admin)",
    "ui-field-behaviour": {
        "hidden-fields": ["login"],
        "relabeling": {"schema": "Scheme", "password": "Token"},
        "placeholders": {"host": "broker-1.example.org", "port": "8443", "schema": "https"},
    },
    "conn-fields": {
        "service_url": _text("Service URL", "pulsar://host:6650 or pulsar+ssl://host:6651; for data only."),
        "token_file": _text(
            "Token file", "File with the token, read for each call. Takes precedence over the token."
        ),
        "ca_file": _text("CA file", "PEM file with the certificates that sign the brokers' certificates."),
        "cert_file": _text("Certificate file", "PEM file with the client's certificate."),
        "key_file": _text("Key file", "PEM file with the client's key."),
        "verify_hostname": {
            "label": "Verify the host name",
            "schema": {"type": ["boolean", "null"], "default": True},
        },
    },
}


def get_provider_info() -> dict[str, Any]:
    """Return the description of the provider. Every process of Airflow calls this function, so it imports
    nothing.
    """
    return {
        "package-name": "pulsar-cleave",
        "name": _INTEGRATION,
        "description": "A control plane for scalable topics: hooks, operators, a sensor, triggers and assets.",
        "integrations": [{"integration-name": _INTEGRATION, "external-doc-url": "https://pulsar.apache.org"}],
        "connection-types": [_CLEAVE, _PULSAR_ADMIN],
        "hooks": _modules("cleave_provider.hooks.cleave", "cleave_provider.hooks.pulsar_admin"),
        "operators": _modules("cleave_provider.operators.cleave"),
        "sensors": _modules("cleave_provider.sensors.cleave"),
        "triggers": _modules("cleave_provider.triggers.cleave"),
        "extra-links": [
            "cleave_provider.links.cleave.OperationLink",
            "cleave_provider.links.cleave.PolicyLink",
            "cleave_provider.links.cleave.BacktestLink",
        ],
    }


def behaviour_of(connection_type: str) -> dict[str, Any]:
    """Return the behaviour of a connection's own form fields, which Airflow before 3.2 requests from a hook."""
    behaviour = _type(connection_type)["ui-field-behaviour"]
    return {
        "hidden_fields": behaviour.get("hidden-fields", []),
        "relabeling": behaviour.get("relabeling", {}),
        "placeholders": behaviour.get("placeholders", {}),
    }


def widgets_of(connection_type: str) -> dict[str, Any]:
    """Return the form fields for extras, which Airflow before 3.2 requests from a hook. Airflow replaces the
    classes of wtforms by its own.
    """
    from wtforms import BooleanField, StringField

    def widget(description: dict[str, Any]) -> Any:
        kind = BooleanField if "boolean" in description["schema"]["type"] else StringField
        default = description["schema"].get("default")
        return kind(description["label"], description=description.get("description", ""), default=default)

    return {name: widget(field) for name, field in _type(connection_type)["conn-fields"].items()}


def _type(name: str) -> dict[str, Any]:
    """Return the description of the connection type `cleave` or `pulsar_admin`."""
    return next(kind for kind in (_CLEAVE, _PULSAR_ADMIN) if kind["connection-type"] == name)


def _modules(*names: str) -> list[dict[str, Any]]:
    """Return the entry for modules of this provider, as Airflow lists hooks, operators, sensors and triggers."""
    return [{"integration-name": _INTEGRATION, "python-modules": list(names)}]
