"""A folder's files as a killed process, or a power cut, would have left them at any moment.

A power cut leaves of a file the bytes at its last fsync, and of the folder the names at the folder's last fsync. File
systems may have written some later changes of the folder, and not those before: removals, without the new name that
came before them, or the last removal alone. A killed process leaves both as they are. `Disk` looks at every fsync,
rename and removal.

    write a, fsync a          kill: a     power cut: nothing, the folder has no name for it yet
    fsync the folder          kill: a     power cut: a
    write b behind a          kill: ab    power cut: a
"""

import os
from pathlib import Path


class Disk:
    """Watches one flat folder. `crashes` has a state after each event: file contents by name, and how it came about."""

    def __init__(self, folder, monkeypatch):
        self._folder = folder
        self._synced = {}  # inode → bytes
        self._names = {}  # name → inode, as of the last fsync of the folder
        self._removed = []
        self.crashes = []
        fsync, unlink, replace = os.fsync, Path.unlink, Path.replace

        def watched_fsync(descriptor):
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            self._note(f"before the fsync of {path.name}", path)
            fsync(descriptor)
            self._sync(path)
            self._note(f"after the fsync of {path.name}", path)

        def watched_unlink(path, **kwargs):
            if path.parent == folder and path.exists():
                self._removed.append(path.open("rb"))  # a file that is open keeps its inode for itself
            self._note(f"before the removal of {path.name}", path)
            unlink(path, **kwargs)
            self._note(f"after the removal of {path.name}", path)

        def watched_replace(path, target):
            self._note(f"before the renaming of {path.name}", path)
            replaced = replace(path, target)
            self._note(f"after the renaming of {path.name}", path)
            return replaced

        monkeypatch.setattr(os, "fsync", watched_fsync)
        monkeypatch.setattr(Path, "unlink", watched_unlink)
        monkeypatch.setattr(Path, "replace", watched_replace)

    def killed(self):
        return {path.name: path.read_bytes() for path in self._files()}

    def power_cut(self):
        return {name: self._synced.get(inode, b"") for name, inode in self._names.items()}

    def power_cut_behind_removals(self):
        """The files have been removed for good, and nothing else has changed since the last fsync of the folder."""
        names = {file.name for file in self._files()}
        return {name: data for name, data in self.power_cut().items() if name in names}

    def power_cut_behind_removal_of(self, removed):
        """One file has been removed for good, and nothing else has changed since the last fsync of the folder."""
        return {name: data for name, data in self.power_cut().items() if name != removed}

    def _sync(self, path):
        if path == self._folder:
            self._names = {file.name: file.stat().st_ino for file in self._files()}
        elif path.parent == self._folder:
            self._synced[path.stat().st_ino] = path.read_bytes()

    def _note(self, event, path):
        if self._folder in (path, path.parent):
            states = {
                "killed": self.killed(),
                "power cut": self.power_cut(),
                "power cut behind removals": self.power_cut_behind_removals(),
            }
            if not path.exists():
                states["power cut behind the last removal"] = self.power_cut_behind_removal_of(path.name)
            self.crashes += [(f"{how} {event}", state) for how, state in states.items()]

    def _files(self):
        return list(self._folder.iterdir()) if self._folder.exists() else []


def restore(state, folder):
    """Write a state's files into a new folder."""
    folder.mkdir(parents=True)
    for name, data in state.items():
        (folder / name).write_bytes(data)
    return folder
