"""Bearer tokens as settings, files and applications hold them."""

from __future__ import annotations

import re

from controller.domain.errors import InvalidInput

_TOKEN = re.compile(r"[\x21-\x7e]+")


def bearer_token(text: object, name: str) -> str:
    """Return the token without surrounding white space. Raises InvalidInput, which names the setting and never contains the token.

    A library would quote a token with a line break in the error about its header.
    """
    if not isinstance(text, str):
        raise InvalidInput(
            f"{name} is a value of type {type(text).__name__}; give a str with a token on one line"
        )
    token = text.strip()
    if not _TOKEN.fullmatch(token):
        what = "is empty" if not token else "holds spaces or letters that no token has"
        raise InvalidInput(f"{name} {what}; give a token on one line")
    return token
