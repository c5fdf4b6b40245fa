"""Directories by path and by URL: files appear whole, hidden ones stay hidden, schemes nobody reads are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.domain.errors import InvalidInput
from controller.landing.location import Location


@pytest.fixture
def location(url: str) -> Location:
    """An empty directory that does not exist yet."""
    return Location(url)


def put(location: Location, path: str, content: bytes = b"x") -> None:
    with location.writing(path) as stream:
        stream.write(content)


def test_a_file_appears_when_it_is_whole(location: Location) -> None:
    with location.writing("a/b.parquet") as stream:
        stream.write(b"half")
        assert location.files() == []
        assert len(location.hidden_files("a")) == 1

    assert [(file.path, file.name, file.size_bytes) for file in location.files()] == [
        ("a/b.parquet", "b.parquet", 4)
    ]
    assert location.hidden_files("a") == []


def test_a_file_whose_writer_fails_never_appears(location: Location) -> None:
    def fail() -> None:
        with location.writing("a/b.parquet") as stream:
            stream.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert location.files() == location.hidden_files("a") == []


def test_a_second_writer_of_a_name_replaces_the_file(location: Location) -> None:
    put(location, "a/b", b"first")
    put(location, "a/b", b"second")

    with location.open("a/b") as stream:
        assert stream.read() == b"second"


def test_what_is_below_a_hidden_name_is_found_by_who_knows_it(location: Location) -> None:
    put(location, "_runs/7/rates/part-0")
    put(location, "_runs/7/rates/_SUCCESS")

    assert location.files() == []
    assert [file.path for file in location.files("_runs/7/rates")] == ["_runs/7/rates/part-0"]


def test_moving_and_deleting(location: Location) -> None:
    put(location, "a/b")
    location.move("a/b", "c/d/e")
    assert [file.path for file in location.files()] == ["c/d/e"]
    with pytest.raises(FileNotFoundError):
        location.move("a/b", "c/f")

    location.delete("c/d/e")
    location.delete("c/d/e")
    assert location.files() == []
    location.delete_directory("c")
    location.delete_directory("c")
    assert "c" not in location.directories()


def test_a_directory_that_does_not_exist_is_empty(location: Location) -> None:
    assert location.files() == location.files("nowhere") == []
    assert location.directories() == []


@pytest.mark.parametrize("form", ["{path}", "file://{path}", "file:{path}", "{path}/"])
def test_a_local_directory_has_one_url_however_it_is_given(tmp_path: Path, form: str) -> None:
    location = Location(form.format(path=tmp_path / "x"))

    assert location.url() == f"file://{tmp_path}/x"
    assert location.url("a/b") == f"file://{tmp_path}/x/a/b"


def test_spark_is_given_the_scheme_that_was_given() -> None:
    """And a location of storage that is away can be made: only its use asks for it."""
    assert Location("s3a://bucket/landing/").url("a") == "s3a://bucket/landing/a"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("gopher://host/landing", "no installed library reads gopher://"),
        ("hdfs://namenode:8020/landing", "ARROW_LIBHDFS_DIR"),
    ],
    ids=["no library reads the scheme", "the library of HDFS is missing"],
)
def test_a_location_that_cannot_be_read_says_what_is_missing(address: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Location(address).files()
