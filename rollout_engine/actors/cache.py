"""Complete versions that an actor builds itself, from what the learner pushes less than completely.

Invariant: a folder goes by a version's name only when its files were compared with the version's digests. While files
are written or patched they lie under a name that is no version's, so whatever ends a build in the middle leaves
nothing that passes for whole. One version is held at a time: a build onto it patches its files where they are.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from protocol.versions import folder_name
from rollout_engine.actors.digests import WeightsDamaged, verify_digests

_BUILDING = ".building"


class Cache:
    """One actor's folder of built versions; made when it is first needed."""

    def __init__(self, folder: Path):
        self._folder = folder

    def held(self) -> int | None:
        """The version that is there, as far as names say."""
        names = (re.fullmatch(r"v(\d{6,})", entry.name) for entry in self._entries())
        return max((int(name[1]) for name in names if name), default=None)

    def path(self, version: int) -> Path:
        return self._folder / folder_name(version)

    def build(
        self, version: int, digests: Mapping[str, str], write: Callable[[Path], None], onto: int | None = None
    ) -> Path:
        """Have ``write`` make ``version`` in a folder: an empty one, or that of the held version ``onto``, which is
        then gone. Returns the folder.

        Raises :class:`WeightsDamaged` when the result hasn't the ``digests``, or can't be written.
        """
        building, place = self._folder / _BUILDING, self.path(version)
        try:
            shutil.rmtree(building, ignore_errors=True)
            if onto is None:
                self.clear()
                building.mkdir(parents=True)
            else:
                self.path(onto).rename(building)
            write(building)
            verify_digests(building, digests)
            building.rename(place)
        except (OSError, ValueError) as error:
            raise WeightsDamaged(f"{place} can't be built: {error}") from error
        finally:
            shutil.rmtree(building, ignore_errors=True)
        return place

    def clear(self) -> None:
        """Give up what is there."""
        for entry in self._entries():
            shutil.rmtree(entry, ignore_errors=True)

    def _entries(self) -> list[Path]:
        return list(self._folder.iterdir()) if self._folder.is_dir() else []
