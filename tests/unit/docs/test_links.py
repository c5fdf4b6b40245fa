"""Links and commands in the texts lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from controller.commands.cli import app
from controller.commands.command_list import Listed

ROOT = Path(__file__).parents[3]
TEXTS = sorted({*ROOT.glob("*.md"), ROOT / "tests" / "README.md", *(ROOT / "docs").rglob("*.md")})
OF_THE_PRESENT = [path for path in TEXTS if path.name != "CHANGELOG.md" and path.parent.name != "adr"]
"""Texts that name no command of the past."""
_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def prose(path: Path) -> str:
    """The text without its blocks of code."""
    return _FENCE.sub("", path.read_text())


def anchors(path: Path) -> set[str]:
    """What GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_inside_the_project_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\((?!https?:|mailto:)([^)\s]*)\)", prose(path))
    broken = []
    for link in links:
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)

    assert broken == []


def commands_as_words(path: Path) -> list[list[str]]:
    """Every `cleave ...` of the text's shell blocks, cut into words."""
    blocks = [body for kind, body in _FENCE.findall(path.read_text()) if kind in ("sh", "bash", "console")]
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    found = (re.search(r"(?:^|[|(;&] *|\$ )((?:\S*/)?cleave .*)", line) for line in lines)
    return [shlex.split(re.split(r"[|;)]", match[1])[0], comments=True)[1:] for match in found if match]


def words_in_sentences(path: Path) -> list[list[str]]:
    """Every `cleave ...` between the text's blocks, and every list of words in a block that a program runs."""
    found = re.findall(r"`cleave ([^`]+)`", prose(path))
    lists = re.findall(r'\["cleave", ([^]]+)\]', path.read_text())
    return [shlex.split(text) for text in found] + [shlex.split(text.replace(",", " ")) for text in lists]


def not_a_verb(rest: list[str]) -> bool:
    """Of a noun that is a command itself: its own options follow, or nothing."""
    return not rest or rest[0].startswith("--")


def demand_known(arguments: list[str], *, may_be_noun: bool) -> None:
    """Demand that the command exists, with its options; `may_be_noun`: a group of commands or a sentence about its options may end early."""
    command = typer.main.get_command(app)
    rest = list(arguments)
    while hasattr(command, "commands") and not (
        (may_be_noun or command.invoke_without_command) and not_a_verb(rest)
    ):
        assert rest, f"{arguments}: a noun without a verb"
        assert rest[0] in command.commands, f"cleave {' '.join(arguments)}: no command {rest[0]}"
        command = command.commands[rest.pop(0)]
        command = command.load() if isinstance(command, Listed) else command
    options = {name for parameter in command.params for name in parameter.opts + parameter.secondary_opts}

    assert {word.split("=")[0] for word in rest if word.startswith("--")} <= {*options, "--help"}, arguments


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_in_shell_blocks_exist_with_their_options(path: Path) -> None:
    for arguments in commands_as_words(path):
        demand_known(arguments, may_be_noun=False)


@pytest.mark.parametrize("path", OF_THE_PRESENT, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_in_sentences_exist_with_their_options(path: Path) -> None:
    for arguments in words_in_sentences(path):
        demand_known(arguments, may_be_noun=True)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_to_be_installed_is_this_project(path: Path) -> None:
    """The distribution `cleave` is another program; ours is `pulsar-cleave`."""
    blocks = "\n".join(body for _, body in _FENCE.findall(path.read_text()))

    assert re.findall(r"(?<![\w-])cleave\[\w*", path.read_text()) == []
    assert re.findall(r"pip install '?cleave\b", blocks) == []
