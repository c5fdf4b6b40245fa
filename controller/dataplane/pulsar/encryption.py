"""End-to-end encryption: what producers and readers are opened with, and entries that cannot be decrypted here.

Brokers and Cleave's controller never need a key: an entry's bucket stands in its ordering key, and what its producer and batch are in
its headers, all of them in the clear. A batch is encrypted as a whole, and holds messages of one bucket only, so whoever may read the
bucket can be given it. Applications hold the keys; they name them in their own settings.

A reader takes what it cannot decrypt, too, and then raises. The library's other ways are to say nothing for ever, or to acknowledge it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulsar

from controller.dataplane.pulsar.access import PulsarAccess
from controller.dataplane.pulsar.messages import position_of
from controller.domain.errors import Terminal

_NO_FILE = ""


def encrypting(access: PulsarAccess) -> Mapping[str, Any]:
    """Arguments of a producer; none where its messages travel in the clear."""
    if access.encryption_key is None:
        return {}
    keys = pulsar.CryptoKeyReader(access.encryption_public_key_file or _NO_FILE, _NO_FILE)
    return {"encryption_key": access.encryption_key, "crypto_key_reader": keys}


def decrypting(access: PulsarAccess) -> Mapping[str, Any]:
    """Arguments of a consumer or reader, with a private key or without one."""
    takes_all = {"crypto_failure_action": pulsar.ConsumerCryptoFailureAction.CONSUME}
    if access.encryption_private_key_file is None:
        return takes_all
    return takes_all | {
        "crypto_key_reader": pulsar.CryptoKeyReader(_NO_FILE, access.encryption_private_key_file)
    }


def is_unreadable(message: pulsar.Message) -> bool:
    """Whether this is an entry as it is stored, whatever it holds: it is encrypted, and no key here fits."""
    context = message.encryption_context()
    return context is not None and bool(context.is_decryption_failed())


def unreadable(message: pulsar.Message, backing_topic: str) -> Terminal:
    """The error for such an entry, which stays unacknowledged."""
    ledger, entry, _ = position_of(message.message_id())
    keys = message.encryption_context().keys  # a method of the library's, of no mapping
    names = ", ".join(repr(key.key) for key in keys())
    return Terminal(
        f"{backing_topic}: entry {ledger}:{entry} is encrypted with key {names} and cannot be decrypted here: set "
        "CLEAVE_PULSAR_ENCRYPTION_PRIVATE_KEY_FILE to its private key; nothing from there on is acknowledged"
    )
