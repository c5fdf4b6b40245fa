"""Database URLs are read in one way, libpq's, whoever reads them."""

from __future__ import annotations

import pytest
from psycopg2.extensions import parse_dsn
from sqlalchemy import URL, make_url

from controller.domain.errors import InvalidInput
from controller.postgres.address import DatabaseAddress
from controller.settings import load_settings
from controller.tasks import database_url
from controller.tasks.application_of_connection import settings_at

SEVERAL = "postgresql://u:p%40ss@a:1,b:2/d?target_session_attrs=read-write"
READ = {
    SEVERAL: {
        "user": "u",
        "password": "p@ss",
        "host": "a,b",
        "port": "1,2",
        "dbname": "d",
        "target_session_attrs": "read-write",
    },
    "postgres://a,b:2/d": {"host": "a,b", "port": ",2", "dbname": "d"},
    "postgresql+psycopg2://u@[::1]:5,[fe80::1]:6/d": {
        "user": "u",
        "host": "::1,fe80::1",
        "port": "5,6",
        "dbname": "d",
    },
    "postgresql+psycopg://u:p%2Fx@h/d?sslmode=require": {
        "user": "u",
        "password": "p/x",
        "host": "h",
        "dbname": "d",
        "sslmode": "require",
    },
    "postgresql://u@/d?host=/var/run/post%20gres": {"user": "u", "host": "/var/run/post gres", "dbname": "d"},
    "postgresql://%2Ftmp%2Fsocket:7/d": {"host": "/tmp/socket", "port": "7", "dbname": "d"},
    "postgresql:///d?host=a,b&port=1,2": {"dbname": "d", "host": "a,b", "port": "1,2"},
    "postgresql://h/d?options=-c%20search_path%3Dx": {
        "host": "h",
        "dbname": "d",
        "options": "-c search_path=x",
    },
    "postgresql+psycopg2://a:postgresql%2Bpsycopg2@h:5/d": {
        "user": "a",
        "password": "postgresql+psycopg2",
        "host": "h",
        "port": "5",
        "dbname": "d",
    },
    "postgresql:///d": {"dbname": "d"},
}


@pytest.mark.parametrize("url", READ)
def test_a_url_is_read_as_libpq_does_and_written_so_that_libpq_reads_the_same(url: str) -> None:
    address = DatabaseAddress.of(url)

    assert address.parameters == READ[url]
    written = {name: value for name, value in parse_dsn(address.uri).items() if value.strip(",")}
    assert written == READ[url]
    assert DatabaseAddress.of(address.uri).servers == address.servers


@pytest.mark.parametrize("url", READ)
def test_settings_and_the_extras_of_a_connection_leave_it_as_it_is(url: str) -> None:
    assert load_settings(database_url=url).database_url.get_secret_value() == url

    dsn = settings_at(url, {"connect_timeout": 3}).database_url.get_secret_value()

    assert DatabaseAddress.of(dsn).parameters == {**READ[url], "connect_timeout": "3"}


def test_an_sqlalchemy_url_of_one_host_is_taken() -> None:
    url = make_url("postgresql+psycopg2://u:p%40ss@h:1/d?sslmode=require")

    assert DatabaseAddress.of(url).parameters == {
        "user": "u",
        "password": "p@ss",
        "host": "h",
        "port": "1",
        "dbname": "d",
        "sslmode": "require",
    }


OF_SQLALCHEMY = "postgresql+psycopg2://u:s3cret@/d?host=a:5432&host=b:5433"


@pytest.mark.parametrize(
    "url",
    [
        OF_SQLALCHEMY,
        make_url(OF_SQLALCHEMY),
        "postgresql://u:s3cret@/d?host=a:5432",
        "postgresql://u:s3cret@/d?host=a&host=b",
    ],
    ids=str,
)
def test_the_form_of_sqlalchemy_for_several_hosts_is_refused_with_the_right_one(url: str | URL) -> None:
    with pytest.raises(InvalidInput, match=r"host1:5432,host2:5432/database\?target_") as refused:
        DatabaseAddress.of(url)

    assert "s3cret" not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:s3cret@h/d",
        "s3cret",
        "",
        "postgresql://h:s3cret/d",
        "postgresql://u:s3/cret@h/d",
        "postgresql://u:s3@cret@h/d",
        "postgresql://u:%zzs3cret@h/d",
        "postgresql://h:70000/d",
        "postgresql:///d?host=a,b,c&port=1,2",
        "postgresql://u:s3cret@h/d?colour=blue",
    ],
)
def test_other_texts_are_refused_in_one_line_that_repeats_no_password(url: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        DatabaseAddress.of(url)

    assert not any(piece in str(refused.value) for piece in ("s3cret", "cret@", "\n"))
    assert refused.value.__cause__ is None


def test_a_label_names_the_servers_and_no_secret() -> None:
    address = DatabaseAddress.of("postgresql://u:s3cret@a:1,[::1]:2/d?sslpassword=s3cret&connect_timeout=3")

    assert address.label == "postgresql://u:***@a:1,[::1]:2/d"
    assert "s3cret" not in f"{address!r} {address}"


@pytest.mark.parametrize(
    ("host", "port", "servers"),
    [
        ("db", 5433, [("db", "5433")]),
        ("db", None, [("db", "")]),
        ("a,b", 5433, [("a", "5433"), ("b", "5433")]),
        ("a:1, b", 2, [("a", "1"), ("b", "2")]),
        ("::1", 5433, [("::1", "5433")]),
        ("[::1]:7,b", 5433, [("::1", "7"), ("b", "5433")]),
        ("/var/run/postgresql", None, [("/var/run/postgresql", "")]),
        ("", None, [("", "")]),
    ],
)
def test_the_fields_of_a_form_name_one_host_or_several(
    host: str, port: int | None, servers: list[tuple[str, str]]
) -> None:
    address = DatabaseAddress.of(database_url(host, port, "u/x", "p@ss", "my db"))

    assert list(address.servers) == servers
    assert [address.parameters[name] for name in ("user", "password", "dbname")] == ["u/x", "p@ss", "my db"]


def test_a_server_that_is_to_be_tried_first_keeps_its_port() -> None:
    moved = DatabaseAddress.of(SEVERAL).starting_with(("b", "2"))

    assert moved.servers == (("b", "2"), ("a", "1"))
    assert moved.parameters["target_session_attrs"] == "read-write"
