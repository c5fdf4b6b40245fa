"""Configures end-to-end encryption of producers and readers, and detects entries that cannot be decrypted.

Brokers and Cleave's controller never need a key: an entry's bucket is in its ordering key, and its producer
and batch are in its headers, all of them unencrypted. A batch is encrypted as a whole and contains messages
of one bucket only, so the broker can deliver it to the bucket's reader. Applications have the keys, and name
them in their own settings.

A reader also accepts entries that it cannot decrypt, and then raises an error. The library's alternatives are
to wait silently forever, or to acknowledge such an entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulsar

from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.messages import position_of
from controller.domain.errors import Terminal

_NO_FILE = ""


def encrypting(access: PulsarAccess) -> Mapping[str, Any]:
    """Return the encryption arguments of `create_producer`. Empty if `access` has no `encryption_key`, so that
    messages are not encrypted.
    """
    if access.encryption_key is None:
        return {}
    keys = pulsar.CryptoKeyReader(access.encryption_public_key_file or _NO_FILE, _NO_FILE)
    return {"encryption_key": access.encryption_key, "crypto_key_reader": keys}


def decrypting(access: PulsarAccess) -> Mapping[str, Any]:
    """Return the arguments that a consumer or reader needs to decrypt messages. The private key of `access` is used
    if there is one. With or without a key, the consumer or reader also delivers entries that it cannot decrypt, in
    the form in which they are stored.
    """
    takes_all = {"crypto_failure_action": pulsar.ConsumerCryptoFailureAction.CONSUME}
    if access.encryption_private_key_file is None:
        return takes_all
    return takes_all | {
        "crypto_key_reader": pulsar.CryptoKeyReader(_NO_FILE, access.encryption_private_key_file)
    }


def is_unreadable(message: pulsar.Message) -> bool:
    """Return True if the message is an entry as stored, whatever it contains, because it is encrypted and no
    key here can decrypt it.
    """
    context = message.encryption_context()
    return context is not None and bool(context.is_decryption_failed())


def unreadable(message: pulsar.Message, backing_topic: str) -> Terminal:
    """Return the error for `message`, an entry that cannot be decrypted (`is_unreadable`). The error names the
    topic, the entry and its keys, and says that the entry stays unacknowledged.
    """
    ledger, entry, _ = position_of(message.message_id())
    keys = message.encryption_context().keys  # a method of the library, not of a mapping
    names = ", ".join(repr(key.key) for key in keys())
    return Terminal(
        f"{backing_topic}: entry {ledger}:{entry} is encrypted with key {names} and cannot be decrypted here: set "
        "CLEAVE_PULSAR_ENCRYPTION_PRIVATE_KEY_FILE to its private key; this and later messages stay unacknowledged"
    )
