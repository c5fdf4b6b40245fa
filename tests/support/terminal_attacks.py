"""Texts with which an application could control an operator's terminal or deceive its reader."""

from __future__ import annotations

ATTACKS = {
    "clear": "\x1b[2J\x1b[H",
    "title": "\x1b]0;owned\x07",
    "clipboard": "\x1b]52;c;cm0gLXJmIC8=\x07",
    "hyperlink": "\x1b]8;;http://evil.example\x1b\\click\x1b]8;;\x1b\\",
    "8-bit CSI": "\x9b2J",
    "8-bit OSC": "\x9d0;owned\x9c",
    "backspace": "root\x08\x08\x08\x08user",
    "carriage return": "refused\rdone   ",
    "delete": "a\x7f\x7f",
    "bell": "\x07",
    "shift out": "\x0eqqq\x0f",
    "override": "txt\u202egnp.exe",
    "isolate": "a\u2066b\u2069",
    "mark": "a\u200fb",
    "Arabic mark": "a\u061cb",
    "zero width": "ad\u200bmin",
    "byte order mark": "\ufeffadmin",
    "line separator": "a\u2028cleave: done",
    "tag": "a\U000e0041",
    "line": "a\n2026-11-26 [info] all is well",
}
"""By name. Each holds a character that no name may hold."""


def is_safe(written: str) -> bool:
    """Return True if a terminal shows each character as itself and obeys none but the end of a line."""
    return all(char.isprintable() or char == "\n" for char in written)
