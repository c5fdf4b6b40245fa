"""Types that msgspec decodes: two threads that decode one for the first time end the process, so its decoder is made at import."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3]
_FIRST_DECODING = """
import sys, threading
sys.setswitchinterval(1e-6)
import msgspec
Inner = msgspec.defstruct("Inner", [(f"f{i}", int) for i in range(50)])
Outer = msgspec.defstruct("Outer", [("a", Inner), ("b", list[Inner]), ("c", dict[str, Inner])])
decoder = msgspec.json.Decoder(Outer)
together = threading.Barrier(8)
def decode():
    together.wait()
    try:
        decoder.decode(b'{"a": 1}')
    except msgspec.ValidationError:
        pass
threads = [threading.Thread(target=decode) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Yield every call of msgspec that decodes into a type, with its place."""
    for folder in ("controller", "cleave_provider", "spark_jobs", "dags", "plugins"):
        for path in sorted((PROJECT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                    "msgspec.json.decode",
                    "msgspec.convert",
                ):
                    yield f"{path.relative_to(PROJECT)}:{node.lineno}", node


def test_no_call_decodes_into_a_type_whose_decoder_was_not_made_at_import() -> None:
    typed = {}
    for place, call in calls():
        named = [word.value for word in call.keywords if word.arg == "type"]
        kinds = named if ast.unparse(call.func) == "msgspec.json.decode" else [*named, *call.args[1:2]]
        typed.update((place, ast.unparse(kind)) for kind in kinds)

    assert typed
    assert {place: kind for place, kind in typed.items() if not kind.endswith(".type")} == {}


@pytest.mark.parametrize("attempt", range(3))
def test_a_decoder_that_is_made_may_be_used_first_by_several_threads(attempt: int) -> None:
    del attempt
    subprocess.run([sys.executable, "-c", _FIRST_DECODING], check=True, timeout=60)
