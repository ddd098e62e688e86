"""Files that came with requests: each worker has a folder, which goes when the worker does.

    uploads = Uploads()               # removes what servers left behind that were killed
    folder = uploads.folder()
    uploads.remove(folder)

A worker that is ended cannot tidy up, so the server does. A server that is killed cannot either: it holds a lock on its
folder while it lives, and the next server removes every folder that nothing holds any more.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path

PREFIX = "inferometer-web-"
_LOCK = "lock"


class Uploads:
    """The folder of one server, with one inside for each of its workers."""

    def __init__(self, place: str | None = None) -> None:
        temporary = Path(place or tempfile.gettempdir())
        remove_abandoned(temporary)
        unlocked = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=temporary))
        self.lock = os.open(unlocked / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        _locked(self.lock)
        self.root = unlocked.rename(unlocked.with_name(unlocked.name[1:]))  # seen by other servers only once it is held

    def folder(self) -> Path:
        """A new folder inside."""
        return Path(tempfile.mkdtemp(dir=self.root))

    def remove(self, folder: Path) -> None:
        """Remove a folder that `folder` made, whatever is in it."""
        shutil.rmtree(folder, ignore_errors=True)

    def stop(self) -> None:
        """Remove all of them."""
        shutil.rmtree(self.root, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.close(self.lock)
        self.lock = -1


def remove_abandoned(place: Path) -> list[Path]:
    """Remove the folders of servers that are gone; those of other users and of servers that live are left alone."""
    removed = []
    for folder in place.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            about = folder.lstat()
            if not stat.S_ISDIR(about.st_mode) or (hasattr(os, "getuid") and about.st_uid != os.getuid()):
                continue
            handle = os.open(folder / _LOCK, os.O_RDWR)
            try:
                if _locked(handle):
                    shutil.rmtree(folder, ignore_errors=True)
                    removed.append(folder)
            finally:
                os.close(handle)
    return removed


def _locked(handle: int) -> bool:
    """Whether the lock is ours now; where the system has no such locks, nothing is ever taken for abandoned."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True
