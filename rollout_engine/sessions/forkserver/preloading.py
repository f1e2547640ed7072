"""Modules that a session imported late, and importing them before the next one is forked.

Invariant: only libraries count, from where Python keeps installed packages and its own: the server's own modules may
look at what a session was told before they are imported.
"""

import importlib
import os
import sys

STANDARD = os.path.join(os.path.dirname(os.__file__), "")
INSTALLED = ("/site-packages/", "/dist-packages/")
_state = {"own": "", "known": 0}


def own(module):
    """Name the server's own top-level package, which is no library though it may be installed."""
    _state["own"] = module.partition(".")[0]


def started():
    """From here on what is imported is the session's."""
    _state["known"] = len(sys.modules)


def imported():
    """Names of the libraries' modules imported since, in their order."""
    found = []
    for name, module in list(sys.modules.items())[_state["known"] :]:
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or name.partition(".")[0] == _state["own"]:
            continue
        if file.startswith(STANDARD) or any(folder in file for folder in INSTALLED):
            found.append(name)
    return found


def preload(names):
    """Import what can be imported."""
    for name in names:
        try:
            importlib.import_module(name)
        except Exception:
            pass  # a session will find out for itself, if it still wants it
