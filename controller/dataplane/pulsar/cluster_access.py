"""Contains the address and the credentials of a Pulsar cluster: addresses, token, certificates.

Both sides of the data plane share one value. It reads the token's file for each call, so that a renewed token
needs no restart, and its text never contains a secret.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from controller.domain.bearer_token import bearer_token
from controller.domain.errors import InvalidInput

_ADMIN_SCHEMES = ("http", "https")
_SERVICE_SCHEMES = ("pulsar", "pulsar+ssl")
_FILES = (
    "token_file",
    "ca_file",
    "cert_file",
    "key_file",
    "encryption_public_key_file",
    "encryption_private_key_file",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarAuth:
    """Credentials for a Pulsar cluster, and the keys of encrypted messages. Immutable, safe to share between
    threads.

    Raises InvalidInput if `cert_file` and `key_file`, or `encryption_key` and `encryption_public_key_file`, are
    not given together, if a file does not exist, or if `token` is no valid token. White space around `token` is
    removed.
    """

    token: str | None = field(default=None, repr=False)
    """JSON web token of a role that may produce and consume."""
    token_file: str | None = None
    """File that contains the token. The client reads it for each connection, so a renewed token needs no
    restart. Takes precedence over `token`.
    """
    ca_file: str | None = None
    """PEM bundle against which the brokers' certificates are checked. None: the system's certificates."""
    cert_file: str | None = None
    """Client certificate, PEM. Needs `key_file`."""
    key_file: str | None = None
    """Key of the client certificate, PEM."""
    verify_hostname: bool = True
    """Check the host name in the brokers' certificates. False accepts a certificate of another host name."""
    encryption_key: str | None = None
    """Name of the key with which producers encrypt. Each message contains the name, by which readers find the
    key. None: no encryption.
    """
    encryption_public_key_file: str | None = None
    """Public key for encryption, PEM."""
    encryption_private_key_file: str | None = None
    """Private key for decryption, PEM. A producer does not need it."""

    def __post_init__(self) -> None:
        if self.token is not None:
            object.__setattr__(self, "token", bearer_token(self.token, self._name("token")))
        if (self.cert_file is None) != (self.key_file is None):
            raise InvalidInput(
                f"a client certificate needs its key: set {self._name('cert_file')} and {self._name('key_file')} together"
            )
        if (self.encryption_key is None) != (self.encryption_public_key_file is None):
            raise InvalidInput(
                f"encryption needs a key and its name: set {self._name('encryption_key')} and "
                f"{self._name('encryption_public_key_file')} together"
            )
        for name in _FILES:
            value = getattr(self, name)
            if value is not None and not Path(value).is_file():
                raise InvalidInput(f"{self._name(name)}={value}: there is no such file")

    def _name(self, field: str) -> str:
        """Return the name of the field for messages: the argument that an application gives."""
        return field


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarAccess(PulsarAuth):
    """Settings of one cluster. `admin_url` has scheme `http` or `https`, and may name several brokers:
    `http://one:8080,two:8080` or `http://one:8080,http://two:8080`. Raises InvalidInput as `PulsarAuth` does, and for
    an address of another form.
    """

    admin_url: str
    service_url: str | None = None
    """Address with scheme `pulsar://` or `pulsar+ssl://`. Producing, consuming, gates and samples of keys need it."""

    def __post_init__(self) -> None:
        _check_url("CLEAVE_PULSAR_ADMIN_URL", self.admin_url, _ADMIN_SCHEMES)
        if any(url.count("://") > 1 for url in self.admin_urls):
            raise InvalidInput(
                f"CLEAVE_PULSAR_ADMIN_URL={self.admin_url}: give the addresses of all brokers the same scheme"
            )
        if self.service_url is not None:
            _check_url("CLEAVE_PULSAR_SERVICE_URL", self.service_url, _SERVICE_SCHEMES)
        PulsarAuth.__post_init__(self)

    def _name(self, field: str) -> str:
        """Return the name of the field for messages: the setting of a Cleave process."""
        return f"CLEAVE_PULSAR_{field.upper()}"

    @property
    def admin_urls(self) -> tuple[str, ...]:
        """Addresses of the brokers in the order of `admin_url`, without a slash at the end."""
        scheme, _, hosts = self.admin_url.partition("://")
        names = (host.strip().removeprefix(f"{scheme}://").rstrip("/") for host in hosts.split(","))
        return tuple(f"{scheme}://{name}" for name in names)

    @property
    def has_credentials(self) -> bool:
        """True if calls carry a token, which must not be sent without TLS. A client certificate does not
        count.
        """
        return self.token is not None or self.token_file is not None

    def current_token(self) -> str | None:
        """Return the current token: the content of `token_file` if that is set, otherwise `token`. None if neither is
        set. The file is read at each call, so that a renewed token is used at once. Raises InvalidInput if the file
        cannot be read or contains no valid token.
        """
        if self.token_file is None:
            return self.token
        name = f"{self._name('token_file')}={self.token_file}"
        try:
            return bearer_token(Path(self.token_file).read_text(), name)
        except OSError as error:
            raise InvalidInput(f"{name} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError:
            raise InvalidInput(f"{name} cannot be read: it is not text") from None


def _check_url(name: str, url: str, schemes: tuple[str, ...]) -> None:
    """Raise InvalidInput unless the URL has a scheme of `schemes`, a host, a valid port above 0 or none, and no user
    or password. Of several addresses separated by commas, only the first is parsed, but a user or password is
    detected in each. `name` is the setting that the message names. The message does not repeat a URL that contains a
    password.
    """
    try:
        parts = urlsplit(url.split(",", maxsplit=1)[0])
        valid = parts.scheme in schemes and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        raise InvalidInput(f"{name} cannot be read; write {schemes[0]}://host:port") from None
    if "@" in url:
        raise InvalidInput(
            f"{name} contains a user or password; put a token into CLEAVE_PULSAR_TOKEN instead"
        )
    if not valid:
        raise InvalidInput(f"{name}={url} is not of the form {' or '.join(schemes)}://host:port")
