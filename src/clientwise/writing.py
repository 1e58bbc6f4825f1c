"""Files that a reader, or a power cut, finds whole."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ENDING = ".part"  # of files that are being written


def write_atomically(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a file so that a reader, or a crash, finds the old content or the new one, whole."""
    with replacing(path, mode) as temporary:
        temporary.write_bytes(content)


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """An empty file to write to. At the end it becomes the file `path`, unless there is an error.

    Its name is its own: of several writers of a file, the last to end wins. A process that is killed
    leaves it behind.

    Args:
        path: the file to write or to replace. A link is replaced, and not what it leads to.
        mode: the most that users may do with it; see `os.chmod`.
    """
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(6)}{ENDING}")
    try:
        if path.is_file():
            mode &= path.stat().st_mode  # who could not read the old file cannot read the new one
        temporary.touch(mode, exist_ok=False)
        yield temporary
        _replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)  # on a full disk, half a file is in the way
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise


def _replace(written: Path, path: Path) -> None:
    """Rename a file within a folder. When this returns, its content and its new name are on the disk."""
    with written.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(written, path)
    if os.name == "nt":  # a folder cannot be opened there
        return
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # of a file system that cannot do it
            raise
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, where they are not there; a link to nothing is named as such."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        link = Path(error.filename)
        if link.exists() or not link.is_symlink():
            raise
        problem = f"is a link to {os.readlink(link)}, which does not exist; make that folder, or remove the link"
        raise FileNotFoundError(errno.ENOENT, problem, str(link)) from None
