"""Files that a reader, or a power cut, finds whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash, finds the old content or the new one, whole."""
    temporary = make_way(path.with_name(path.name + ".part"))
    with naming(path):
        try:
            temporary.write_bytes(content)
            put_in_place(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)  # on a full disk, half a file is in the way
            raise


def put_in_place(written: Path, path: Path) -> None:
    """Rename a file within a file system. When this returns, its content and its new name are on the disk."""
    with written.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(written, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Without this, a power cut can undo a rename, or a new file."""
    if os.name == "nt":  # a folder cannot be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # of a file system that cannot do it
            raise
    finally:
        os.close(descriptor)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an OSError raised within name this file if it names none.

    Python names the file where opening it fails, and not where writing to it does.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def make_way(path: Path) -> Path:
    """Return the path with no link or pipe there, so that what is written lies in this place."""
    if path.is_symlink() or path.is_fifo():
        path.unlink()
    return path
