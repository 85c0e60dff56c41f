"""Puts fakes in place of the modules of an engine that is not installed."""

import sys
import types


def install_modules(monkeypatch, modules):
    """Makes modules of names and contents, parents first: an import of them and a walk from their parents find them."""
    for name, content in modules.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, child = name.rpartition(".")
        if parent:
            monkeypatch.setattr(sys.modules[parent], child, module, raising=False)
