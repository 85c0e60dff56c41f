"""A file system of its own, on a loop device, whose power can be cut. It needs root, Linux and a free loop device."""

import fcntl
import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN."""
WITHOUT_JOURNAL = struct.pack("I", 2)
"""What is in memory is lost, the journal too: as a power cut leaves the disk."""
SIZE = 512 * 2**20


class Mount:
    """A new file system in the file `image`, mounted at `path`. `cut` ends it, and `mount` brings it back."""

    def __init__(self, folder, kind="ext4"):
        self.image, self.path = Path(folder) / "disk.img", Path(folder) / "mounted"
        self.path.mkdir()
        with self.image.open("wb") as image:
            image.truncate(SIZE)
        _run(f"mkfs.{kind}", "-q", self.image)
        self.mount()

    def mount(self):
        _run("mount", "-o", "loop", self.image, self.path)

    def sync(self):
        """Write everything down: the copied store was not made durably."""
        _run("sync", "-f", self.path)

    def cut(self):
        """Stop the file system at once. Its users get errors from now on; end them, then call `unmount` and `mount`."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, SHUTDOWN, WITHOUT_JOURNAL)
        finally:
            os.close(descriptor)

    def unmount(self):
        _run("umount", self.path)


def mounted(folder, kind="ext4"):
    """A `Mount`; skips the test, and says why, where there is none."""
    if os.geteuid() or not shutil.which(f"mkfs.{kind}"):
        pytest.skip(f"a power cut needs root and mkfs.{kind}")
    try:
        return Mount(folder, kind)
    except OSError as error:
        pytest.skip(f"a power cut needs a loop device and {kind}: {error}")


def _run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{command[0]}: {done.stderr.strip()}")
