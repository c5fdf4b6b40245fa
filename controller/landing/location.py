"""A directory at a local path, or at any URL that pyarrow or fsspec can access.

Files appear under their names completely or not at all: they are written under a hidden name and then moved. Names
that begin with a dot or an underscore are invisible to `files`. The module does not depend on the contents of the
files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from secrets import token_hex
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from controller.domain.errors import InvalidInput

_HADOOP_NAMES = {"s3a": "s3", "s3n": "s3"}
"""Schemes whose names differ between Hadoop, and therefore Spark, and pyarrow."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file in a listing; `path` is relative to the location, `modified_at_ms` is 0 if unknown."""

    path: str
    size_bytes: int
    modified_at_ms: int

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


class Location:
    """The directory at `url`, a local path or a URL; paths are relative to it, with forward slashes. A part of a
    path that begins with a dot or an underscore is hidden. Methods raise OSError if the storage does not answer.
    """

    def __init__(self, url: str) -> None:
        """Store the URL without accessing the storage. The first use raises InvalidInput if no installed library can
        read the URL.
        """
        scheme = urlsplit(url).scheme
        if scheme in ("", "file"):
            path = Path(url.removeprefix("file://").removeprefix("file:")).expanduser().resolve()
            url = f"file://{path.as_posix()}"
        self._base = url.rstrip("/")

    @cached_property
    def _storage(self) -> tuple[fs.FileSystem, str]:
        """File system, and the root of this location in it."""
        return _resolve(self._base)

    @property
    def _files(self) -> fs.FileSystem:
        return self._storage[0]

    @property
    def _root(self) -> str:
        return self._storage[1]

    def url(self, path: str = "") -> str:
        """Return the URL of a path for Spark and for people: always with a scheme, `file` for a local path. `path` is
        relative to the location; empty: the location itself.
        """
        return f"{self._base}/{path}" if path else self._base

    def files(self, directory: str = "") -> list[FoundFile]:
        """Return the visible files below `directory`, at any depth, ordered by path; empty if the directory does
        not exist.

        A file is hidden if a part of its path below `directory` is hidden; `directory` itself may be.
        """
        return [file for file in self._walk(directory) if not _is_hidden(file.path[len(directory) :])]

    def hidden_files(self, directory: str) -> list[FoundFile]:
        """Return the hidden files below `directory`, at any depth, which are not (or not yet) intended for readers.
        Empty if the directory does not exist.
        """
        return [file for file in self._walk(directory) if _is_hidden(file.path[len(directory) :])]

    def directories(self, parent: str = "") -> list[str]:
        """Return the names of the directories directly below `parent`, sorted, including hidden directories. Empty
        if `parent` does not exist.
        """
        selector = fs.FileSelector(self._absolute(parent), allow_not_found=True)
        infos = self._files.get_file_info(selector)
        return sorted(info.base_name for info in infos if info.type == fs.FileType.Directory)

    def modified_at_ms(self, directory: str) -> int:
        """Return the time of the last write in the directory or below it, in milliseconds since the Unix epoch; 0 if
        the storage does not know, or if the directory does not exist.
        """
        absolute = self._absolute(directory)
        selector = fs.FileSelector(absolute, recursive=True, allow_not_found=True)
        infos = [self._files.get_file_info(absolute), *self._files.get_file_info(selector)]
        return max((info.mtime_ns or 0) // 1_000_000 for info in infos)

    @contextmanager
    def writing(self, path: str) -> Iterator[pa.NativeFile]:
        """Yield a stream that becomes the file at `path` if the block ends without error, replacing an earlier
        file. After an error, which is raised, nothing is written. Until the end the data is in a hidden draft in
        the same directory, which is created if necessary.
        """
        directory, _, name = path.rpartition("/")
        draft = self._absolute(f"{directory}/.{name}.{token_hex(4)}")
        self._files.create_dir(self._absolute(directory), recursive=True)
        try:
            with self._files.open_output_stream(draft) as stream:
                yield stream
            self._files.move(draft, self._absolute(path))
        except BaseException:
            self._delete_absolute(draft)
            raise

    def open(self, path: str) -> pa.NativeFile:
        """Open the file for reading at any offset. Raises FileNotFoundError or another OSError."""
        return self._files.open_input_file(self._absolute(path))

    def move(self, path: str, to: str) -> None:
        """Rename the file, and create the directory of its new path if necessary. Raises FileNotFoundError if the
        file no longer exists.
        """
        self._files.create_dir(self._absolute(to.rpartition("/")[0]), recursive=True)
        self._files.move(self._absolute(path), self._absolute(to))

    def delete(self, path: str) -> None:
        """Delete a file; do nothing if it no longer exists."""
        self._delete_absolute(self._absolute(path))

    def delete_directory(self, path: str) -> None:
        """Delete a directory with its contents; do nothing if it no longer exists."""
        absolute = self._absolute(path)
        if self._files.get_file_info(absolute).type == fs.FileType.Directory:
            with suppress(FileNotFoundError):  # another process deleted it first
                self._files.delete_dir(absolute)

    def _walk(self, directory: str) -> list[FoundFile]:
        """Return all files below `directory`, at any depth, hidden files included, ordered by path; empty if the
        directory does not exist.
        """
        selector = fs.FileSelector(self._absolute(directory), recursive=True, allow_not_found=True)
        files = [
            FoundFile(
                info.path[len(self._root) :].lstrip("/"), info.size or 0, (info.mtime_ns or 0) // 1_000_000
            )
            for info in self._files.get_file_info(selector)
            if info.type == fs.FileType.File
        ]
        return sorted(files, key=lambda file: file.path)

    def _delete_absolute(self, absolute: str) -> None:
        """Delete the file at the path in the file system; do nothing if there is no file."""
        if self._files.get_file_info(absolute).type == fs.FileType.File:
            self._files.delete_file(absolute)

    def _absolute(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root


def _is_hidden(path: str) -> bool:
    """Return True if a part of the path begins with a dot or an underscore."""
    return any(part.startswith((".", "_")) for part in path.split("/"))


def _resolve(url: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of the URL, and the root of the location in it. pyarrow is tried first, then fsspec.
    Raises InvalidInput if no installed library can read the URL, OSError if the storage does not answer.
    """
    scheme = urlsplit(url).scheme
    if scheme == "file":
        return fs.LocalFileSystem(), url.removeprefix("file://")
    try:
        files, root = fs.FileSystem.from_uri(_HADOOP_NAMES.get(scheme, scheme) + url[len(scheme) :])
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        files, root = _through_fsspec(url, scheme)
    except OSError as error:
        if "libhdfs" not in str(error) and "libjvm" not in str(error):
            raise  # the storage does not answer
        raise InvalidInput(
            f"{url}: {scheme}:// requires Hadoop's native library and Java on this machine ({error}); set JAVA_HOME and "
            "ARROW_LIBHDFS_DIR, or use another scheme"
        ) from error
    return files, root.rstrip("/")


def _through_fsspec(url: str, scheme: str) -> tuple[fs.FileSystem, str]:
    """Return the file system and the root from fsspec. Raises InvalidInput if fsspec or the package for the scheme
    is not installed.
    """
    try:
        import fsspec  # type: ignore[import-untyped]

        files, root = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise InvalidInput(
            f"{url}: no installed library reads {scheme}:// ({error}); install fsspec with the package for {scheme}, "
            "or give a path, file://, hdfs:// or s3a:// URL"
        ) from error
    return fs.PyFileSystem(fs.FSSpecHandler(files)), root
