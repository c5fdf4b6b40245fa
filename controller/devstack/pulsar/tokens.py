"""Authentication by token for a local broker: a generated secret, and tokens signed with it.

`TokenAuthentication` provides the broker's properties and the users' tokens; the secret never leaves the directory in
which it was created.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import jwt

ADMINISTRATOR: Final = "admin"
_PLUGIN: Final = "org.apache.pulsar.client.impl.auth.AuthenticationToken"


class TokenAuthentication:
    """Authentication of brokers that require a token. The role `admin` may do everything, other roles what is granted to
    them.
    """

    def __init__(self, directory: Path) -> None:
        """Store the directory. The secret is created in `directory` at the first use and kept."""
        self._key = directory.resolve() / "token-secret.key"

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties to add to the broker's configuration."""
        self._secret()
        return {
            "authenticationEnabled": "true",
            "authorizationEnabled": "true",
            "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
            "tokenSecretKey": self._key.as_uri(),
            "superUserRoles": ADMINISTRATOR,
            "brokerClientAuthenticationPlugin": _PLUGIN,
            "brokerClientAuthenticationParameters": f"token:{self.token()}",
        }

    def token(self, role: str = ADMINISTRATOR) -> str:
        """Return a token for the role `role`, which does not expire."""
        return jwt.encode({"sub": role}, self._secret(), algorithm="HS256")

    def _secret(self) -> bytes:
        """Return the secret that signs the tokens; the first call creates its file, which only this user may read."""
        if not self._key.exists():
            self._key.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(32))
        return self._key.read_bytes()
