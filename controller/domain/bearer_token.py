"""Bearer tokens in settings, files and applications."""

from __future__ import annotations

import re

from controller.domain.errors import InvalidInput

_TOKEN = re.compile(r"[\x21-\x7e]+")


def bearer_token(text: object, name: str) -> str:
    """Return the token without the white space around it. `name` is the setting that the error message names; the
    message never contains the token.

    Raises InvalidInput if `text` is not a str; if `text` contains nothing but white space; or if the token contains
    white space or characters that are not printable ASCII. The check exists because an HTTP library would quote a
    token with a line break in the error about its header.
    """
    if not isinstance(text, str):
        raise InvalidInput(
            f"{name} is a value of type {type(text).__name__}; give a str with a token on one line"
        )
    token = text.strip()
    if not _TOKEN.fullmatch(token):
        defect = "is empty" if not token else "contains spaces or characters that a token cannot have"
        raise InvalidInput(f"{name} {defect}; give a token on one line")
    return token
