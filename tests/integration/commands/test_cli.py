"""What holds for every command: exit codes, one line for a mistake, pipes that close, completion."""

from __future__ import annotations

import json
import os
import pwd
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import structlog
from sqlalchemy import make_url

from controller.commands.exit_codes import EXIT_NOT_WRITTEN
from controller.domain.policy import PARAMETERS
from tests.integration.commands.conftest import TOPIC
from tests.support.command_line import CommandLine

T = TOPIC
MISTAKES = [
    (("nonsense",), "No such command"),
    (("topics", "nonsense"), "No such command"),
    (("topics", "create"), "Missing argument"),
    (("topics", "list", "--nonsense"), "No such option"),
    (("topics", "list", "--limit", "0"), "Invalid value '0' for '--limit'"),
    (("topics", "create", "two/parts"), "topic://tenant/namespace/name"),
    (("topics", "create", T), "exists"),
    (
        ("topics", "create", "a/b/c", "--segments", "0"),
        "segments=0: input should be greater than or equal to 1",
    ),
    (("topics", "create", "a/b/c", "--data-plane", "paper"), "choose one of embedded"),
    (("topics", "create", "a/b/c", "--properties", "novalue"), "key=value"),
    (("topics", "create", "a/b/c", "--properties", "retention_minutes=soon"), "number of minutes"),
    (("topics", "create", "a/b/\u0000"), "NUL"),
    (("topics", "create", "a/b/\udcff"), "surrogate pair"),
    (("topics", "create", "a/b/c", "--properties", "owner=\udcff"), "surrogate pair"),
    (("subscriptions", "create", T, "\udcff"), "surrogate pair"),
    (("topics", "show", "a/b/nobody"), "does not exist"),
    (("topics", "delete", "a/b/nobody", "--yes"), "does not exist"),
    (("segments", "split", T, "99"), "99"),
    (("segments", "split", T, "x"), "valid int"),
    (("segments", "split", T, "0", "--cut-points", "0x8000"), f"topic://{T}"),
    (
        ("segments", "split", T, "0", "--cut-points", "32768"),
        "cut point 0x8000 does not divide range 0000-7fff",
    ),
    (("segments", "split", T, "0", "--cut-points", "0x9000"), "give 0x0000 < cut point <= 0x7fff"),
    (("segments", "split", T, "99"), f"topic://{T}"),
    (("segments", "split", T, "0", "--timeout-seconds", "nan"), "--timeout-seconds nan"),
    (("segments", "split", T, "0", "--timeout-seconds", "inf"), "--timeout-seconds inf"),
    (("segments", "split", T, "0", "--timeout-seconds", "-1"), "--timeout-seconds -1"),
    (("segments", "split", T, "0", "--reason", ""), "reason=''"),
    (("topics", "delete", T, "--yes", "--reason", "  "), "the reason is empty"),
    (("segments", "merge", T, "0", "99"), f"topic://{T}"),
    (("subscriptions", "delete", T, "nobody"), f"topic://{T}"),
    (("lineage", T, "99"), f"topic://{T}"),
    (("layout", T, "--at", "99"), f"topic://{T}"),
    (("policy", "set", "cluster", "split_msg_rate_in=NaN"), "nan"),
    (("decisions", "list", "--topic", "a/b/nobody"), "topic://a/b/nobody does not exist"),
    (("decisions", "refusals", "--topic", "a/b/nobody"), "topic://a/b/nobody does not exist"),
    (("operations", "--topic", "a/b/nobody"), "topic://a/b/nobody does not exist"),
    (("operations", "--stuck", "--topic", "a/b/nobody"), "topic://a/b/nobody does not exist"),
    (("key", "a/b/nobody", "k"), "topic://a/b/nobody does not exist"),
    (("segments", "split", T, "0", "--cut-points", "70000"), "0 to 65535"),
    (("segments", "split", T, "0", "--cut-points", "zebra"), "hexadecimal"),
    (("segments", "split", T, "0", "--cut-points", "0x1000", "--parts", "2"), "not both"),
    (("segments", "split", T, "0", "--parts", "1"), "parts=1: input should be greater than or equal to 2"),
    (("segments", "split", T, "0", "--keep", "soon"), "'soon' is not a duration"),
    (("segments", "split", T, "0", "--keep", "0h"), "keep='0h': give a time from 1min to 366d"),
    (("segments", "split", T, "0", "--keep", "999999w"), "give a time from 1min to 366d"),
    (("segments", "merge", T, "0", "0"), "0"),
    (("segments", "merge", T, "0", "99"), "99"),
    (("segments", "rebucket", T, "0", "0"), "bucket_count=0: input should be greater than or equal to 1"),
    (("segments", "rebucket", T, "0", "2000"), "1024"),
    (("policy", "get", "clutser"), "not a level of policy"),
    (("policy", "set", "clutser", "max_segments=1"), "not a level of policy"),
    (("policy", "remove", "a/b/c/d"), "not a level of policy"),
    (("policy", "get", "a/b/nobody"), "does not exist"),
    (("policy", "set", "cluster", "nonsense=1"), "'nonsense' cannot be set here"),
    (("policy", "set", "cluster", "max_segments"), "key=value"),
    (("policy", "set", "cluster", "max_segments=many"), "whole number"),
    (("policy", "set", "cluster", "split_msg_rate_in=1e400"), "split_msg_rate_in = '1e400'; give a number"),
    (("policy", "set", "cluster", f"split_msg_rate_in={'9' * 400}"), "give a number"),
    (("policy", "set", "cluster", f"max_segments={'9' * 5000}"), "give a whole number"),
    (("policy", "set", "cluster", f"enabled={'[' * 5000}"), "give true or false"),
    (("policy", "set", "cluster", "max_segments=0"), "max_segments = 0 must be"),
    (("policy", "set", "acme/shop", "entry_bucket_budget=4"), "cannot be set here"),
    (("policy", "set", T, "split_msg_rate_in=1"), "split_msg_rate_in = 1"),
    (("bundles", "replay", "--", "-1"), "cycle_id=-1"),
    (("backtests", "show", "--", "-1"), "run_id=-1"),
    (("top", "--once", "--find", "x" * 2_100), "find="),
    (("policy", "effective", "a/b/nobody"), "does not exist"),
    (("subscriptions", "create", T, "s", "--kind", "TELEPATHY"), "TELEPATHY"),
    (("subscriptions", "create", "a/b/nobody", "s"), "does not exist"),
    (("subscriptions", "delete", T, "nobody"), "nobody"),
    (("subscriptions", "list", "a/b/nobody"), "does not exist"),
    (("consumers", "register", T, "nobody", "c"), "nobody"),
    (("consumers", "unregister", "a/b/nobody", "s", "c"), "does not exist"),
    (("consumers", "unregister", T, "s", "c"), "has no registered consumer 'c'"),
    (("consumers", "list", "a/b/nobody"), "does not exist"),
    (("decide",), "give either a topic or --snapshot"),
    (("decide", T, "--snapshot", "-"), "give either a topic or"),
    (("decide", "a/b/nobody"), "does not exist"),
    (("decide", "--snapshot", "/nowhere/file.json"), "No such file"),
    (("decisions", "list", "--limit", "0"), "Invalid value '0' for '--limit'"),
    (("lineage", T, "99"), "99"),
    (("lineage", "a/b/nobody"), "does not exist"),
    (("layout", T, "--at", "nonsense"), "neither an epoch"),
    (("layout", T, "--at", "9" * 5000), "neither an epoch"),
    (("layout", T, "--at", "²"), "neither an epoch"),
    (("lineage", T, "9" * 5000), "Invalid value '99999"),
    (("segments", "split", T, "9" * 4000), "less than or equal to 9223372036854775807"),
    (("segments", "split", T, "0", "--cut-points", "9" * 5000), "is not a hash"),
    (("segments", "rebucket", T, "0", "70000"), "less than or equal to 65536"),
    (("layout", T, "--at", "99"), "no epoch 99"),
    (("layout", T, "--at", "1999-01-01"), "1999"),
    (("migrate", "--url", "mysql://localhost/cleave"), "not PostgreSQL"),
    (("worker", "--metrics-port", "0"), "Invalid value '0' for '--metrics-port'"),
    (
        ("worker", "--metrics-port", "9000", "--metrics-host", "192.0.2.1"),
        "cannot be served at 192.0.2.1:9000",
    ),
]


@pytest.mark.parametrize(
    ("arguments", "word"),
    MISTAKES,
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else "",
)
def test_a_mistake_is_one_line_exit_2_and_changes_nothing(
    cleave: CommandLine, orders: str, arguments: tuple[str, ...], word: str
) -> None:
    assert word in cleave.refused(*arguments)


def test_it_says_which_version_it_is(cleave: CommandLine) -> None:
    assert cleave.ok("--version") == f"cleave {metadata.version('pulsar-cleave')}\n"


@pytest.mark.parametrize("command", [(), ("topics",), ("topics", "list"), ("decisions",)])
def test_help_has_a_short_option_too(cleave: CommandLine, command: tuple[str, ...]) -> None:
    said = cleave.ok(*command, "-h")

    assert said == cleave.ok(*command, "--help")
    assert "-h, --help" in said


def test_a_noun_without_a_verb_shows_its_help(cleave: CommandLine) -> None:
    answer = cleave("policy")

    assert (answer.code, answer.out) == (2, "")
    assert "effective" in answer.err


@pytest.mark.parametrize(
    ("variable", "value", "code", "word"),
    [
        ("CLEAVE_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/nowhere", 75, "PostgreSQL is unreachable"),
        ("CLEAVE_DATABASE_URL", "sqlite:///file", 2, "CLEAVE_DATABASE_URL"),
        ("CLEAVE_WORKER_SHARDS", "many", 2, "CLEAVE_WORKER_SHARDS"),
        ("CLEAVE_RETENTION_MINUTES", "nan", 2, "CLEAVE_RETENTION_MINUTES"),
        ("CLEAVE_OPERATION_DEADLINE_SECONDS", "inf", 2, "CLEAVE_OPERATION_DEADLINE_SECONDS"),
    ],
)
def test_what_is_wrong_with_the_surroundings_is_one_line_too(
    cleave: CommandLine, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, code: int, word: str
) -> None:
    monkeypatch.setenv(variable, value)

    assert word in cleave.refused("topics", "list", code=code)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"password": "not-the-password"}, "password authentication failed"),
        ({"database": "no_such_database"}, 'database "no_such_database" does not exist'),
    ],
)
@pytest.mark.parametrize("command", [("topics", "list"), ("segments", "split", T, "0"), ("migrate",)])
def test_a_login_or_a_database_that_is_wrong_is_one_line_and_no_reason_to_try_again(
    cleave: CommandLine,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    wrong: dict[str, str],
    said: str,
    command: tuple[str, ...],
) -> None:
    url = make_url(database).set(**wrong)
    monkeypatch.setenv("CLEAVE_DATABASE_URL", url.render_as_string(hide_password=False))

    line = cleave.refused(*command, code=2)

    assert said in line
    assert "not-the-password" not in line


def test_the_actor_is_the_users_name_where_no_shell_has_set_it(
    cleave: CommandLine, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("USER", "LOGNAME", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)

    assert cleave.json("segments", "split", orders, "0")["actor"] == pwd.getpwuid(os.getuid()).pw_name


def completed(database: str, *words: str, **more: str) -> list[str]:
    """What a shell offers in place of the last word."""
    line = " ".join(("cleave", *words))
    offered = subprocess.run(
        shell(),
        env=environment(
            database, _CLEAVE_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words)), **more
        ),
        capture_output=True,
        text=True,
        check=False,
    )
    return offered.stdout.split()


def test_the_shell_completes_topics_parameters_planes_and_levels(
    cleave: CommandLine, orders: str, database: str
) -> None:
    cleave.ok("topics", "create", "acme/web/clicks")

    assert completed(database, "layout", "acme/s") == ["acme/shop/orders"]
    assert completed(database, "decisions", "list", "--topic", "acme/") == [
        "acme/shop/orders",
        "acme/web/clicks",
    ]
    assert completed(database, "policy", "set", "acme/shop/orders", "max_s") == ["max_segments="]
    assert completed(database, "bundles", "set-policy", "acme/shop", "max_t") == ["max_topics="]
    assert completed(database, "policy", "get", "c") == ["cluster"]
    assert completed(database, "policy", "get", "acme/sho") == ["acme/shop", "acme/shop/orders"]
    assert completed(database, "topics", "create", "a/b/c", "--data-plane", "p") == [
        "pulsar",
        "pulsar_scalable",
    ]


def test_a_completion_without_a_database_offers_nothing_and_says_nothing() -> None:
    assert completed("postgresql://nobody@127.0.0.1:1/nowhere", "layout", "acme/s") == []


def test_help_names_what_can_be_chosen(cleave: CommandLine) -> None:
    assert {*PARAMETERS} <= set(re.findall(r"\w+", cleave.ok("policy", "set", "-h")))
    for command in ("create", "adopt", "attach"):
        assert "embedded, pulsar, pulsar_scalable" in " ".join(cleave.ok("topics", command, "-h").split())
    kinds = " ".join(cleave.ok("subscriptions", "create", "-h").split())
    assert all(f"{kind}: " in kinds for kind in ("stream", "queue", "checkpoint"))


def test_a_database_without_the_schema_says_what_to_run(
    cleave: CommandLine, empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEAVE_DATABASE_URL", empty_database)

    assert "cleave migrate" in cleave.refused("topics", "list", code=1)


def test_a_database_that_is_away_is_no_fault_of_the_topic(
    cleave: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEAVE_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/nowhere")

    assert T not in cleave.refused("segments", "split", T, "0", code=75)


def test_a_setting_that_is_wrong_is_no_fault_of_the_topic(
    cleave: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEAVE_PULSAR_SERVICE_URL", "pulsar://localhost:6650")

    said = cleave.refused("segments", "split", T, "0")

    assert "CLEAVE_PULSAR_SERVICE_URL" in said
    assert T not in said


def shell(*arguments: str) -> list[str]:
    """The command as a shell would run it."""
    return [str(Path(sys.executable).with_name("cleave")), *arguments]


def environment(url: str, **more: str) -> dict[str, str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("CLEAVE_")}
    return {**inherited, "CLEAVE_DATABASE_URL": url, **more}


def test_the_installed_command_ends_with_its_code(database: str) -> None:
    done = subprocess.run(
        shell("topics", "show", "a/b/nobody"),
        env=environment(database),
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "cleave: topic topic://a/b/nobody does not exist; create it or check the name\n"


@pytest.mark.parametrize("form", [("--json",), ()], ids=["json", "table"])
def test_a_reader_that_leaves_is_no_error(database: str, form: tuple[str, ...]) -> None:
    """As in `cleave policy get cluster | head -0`."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            shell("policy", "get", "cluster", *form),
            env=environment(database),
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writing)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("form", [("--json",), ()], ids=["json", "table"])
def test_a_change_whose_output_cannot_be_written_is_one_line(
    cleave: CommandLine, database: str, form: tuple[str, ...]
) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            shell("policy", "set", "acme/shop", "max_segments=9", *form),
            env=environment(database),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert (done.returncode, done.stderr.count("\n")) == (EXIT_NOT_WRITTEN, 1), done.stderr
    assert done.stderr.startswith("cleave: cannot write the output: No space left on device; a change")
    assert cleave.json("policy", "get", "acme/shop")["parameters"] == {"max_segments": 9}


@pytest.mark.parametrize("line", ["policy set acme/shop max_segments=9", "topics list --json", "--help"])
def test_a_closed_output_is_no_error(database: str, line: str) -> None:
    """As in `cleave topics list >&-`."""
    closing = ["bash", "-c", '"$0" "$@" >&-', *shell(*line.split())]
    done = subprocess.run(closing, env=environment(database), capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def test_the_shell_completes_commands(tmp_path: Path) -> None:
    # The command looks which shell among its ancestors called it; whoever runs the tests may have none.
    called = ["bash", "-c", '"$0" --show-completion; exit $?', *shell()]
    script = subprocess.run(called, capture_output=True, text=True, check=True, cwd=tmp_path)
    offered = subprocess.run(
        shell(),
        env=environment("", _CLEAVE_COMPLETE="complete_bash", COMP_WORDS="cleave topics sh", COMP_CWORD="2"),
        capture_output=True,
        text=True,
        check=False,
    )

    assert "_CLEAVE_COMPLETE=complete_bash" in script.stdout
    assert offered.stdout.split() == ["show"]


def test_logs_never_mix_with_what_programs_read(database: str) -> None:
    done = subprocess.run(
        shell("topics", "list", "--json"),
        env=environment(database),
        capture_output=True,
        text=True,
        check=True,
    )

    assert json.loads(done.stdout) == []


def test_a_command_tried_in_this_process_leaves_its_log_settings(cleave: CommandLine) -> None:
    """Airflow's are there too where DAGs are tested, and what they print is looked at."""
    before = structlog.get_config()

    cleave.ok("topics", "list")

    assert structlog.get_config() == before
