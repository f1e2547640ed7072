"""Policy versions as folders of complete weight files, whatever form they were announced in.

Invariant: :meth:`Versions.materialise` returns a folder whose safetensors files are, digest for digest, the complete
weights of the version, or raises :class:`WeightsDamaged`. The learner's folders are only read.

    full    the announced folder itself
    delta   what is held, patched; or the last full version before it, copied, with every delta since
    adapter the full version that it goes onto, with its low-rank terms merged

numpy only: the sidecar imports neither JAX nor torch.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from protocol import delta
from protocol.records import PolicyVersion
from protocol.versions import RECORD, folder_name, read_record
from rollout_engine.actors.adapter import merge_files
from rollout_engine.actors.cache import Cache
from rollout_engine.actors.digests import WeightsDamaged, verify_digests, verify_files


class Versions:
    """The versions of a run as one actor sees them."""

    def __init__(self, run: Path, cache: Path, tell: Callable[[str], None]):
        """``run``: the run's folder, which announced folders are relative to; ``cache``: the actor's own."""
        self._run, self._cache, self._tell = run, Cache(cache), tell

    def materialise(self, version: PolicyVersion) -> Path:
        """A folder with the complete files of ``version``. Reads whole models: call it in a thread, and use what the
        last call returned no more.

        Raises :class:`WeightsDamaged`.
        """
        match version.form:
            case "full":
                folder = self._announced(version)
                verify_digests(folder, version.sha256)
                self._cache.clear()
                return folder
            case "delta":
                return self._patched(msgspec.structs.replace(version, folder=str(self._announced(version))))
            case "adapter":
                return self._with_adapter(version)

    def _with_adapter(self, version: PolicyVersion) -> Path:
        if self._cache.held() == version.version:
            try:
                verify_digests(self._cache.path(version.version), version.whole)
                return self._cache.path(version.version)
            except WeightsDamaged as error:
                self._tell(f"{error}\nmerging version {version.version} again")
        folder = self._announced(version)
        base = folder.parent / folder_name(version.onto)
        verify_files(folder, version.sha256)

        def write(out: Path) -> None:
            if not base.is_dir():
                raise WeightsDamaged(f"{base}, which the adapter of version {version.version} goes onto, is not there")
            # The base isn't compared with its digests: what is made of it is.
            shutil.copytree(base, out, ignore=shutil.ignore_patterns(RECORD, "*.safetensors"), dirs_exist_ok=True)
            merge_files(base, folder, out)

        return self._cache.build(version.version, version.whole, write)

    def _patched(self, version: PolicyVersion) -> Path:
        held = self._cache.held()
        if held is not None:
            try:
                return self._from_held(version, held)
            except WeightsDamaged as error:
                self._tell(f"{error}\nbuilding version {version.version} from the last full one")
                self._cache.clear()
        first, *links = self._chain(version, None)
        source = Path(first.folder)
        verify_digests(source, first.sha256)
        _verify(links)

        def write(folder: Path) -> None:
            shutil.copytree(source, folder, ignore=shutil.ignore_patterns(RECORD), dirs_exist_ok=True)
            _patch(folder, links)

        return self._cache.build(version.version, version.whole, write)

    def _from_held(self, version: PolicyVersion, held: int) -> Path:
        if held == version.version:
            verify_digests(self._cache.path(held), version.whole)
            return self._cache.path(held)
        links = self._chain(version, held)
        _verify(links)
        return self._cache.build(version.version, version.whole, lambda folder: _patch(folder, links), onto=held)

    def _chain(self, version: PolicyVersion, held: int | None) -> list[PolicyVersion]:
        """What makes ``version``, oldest first: deltas from the ``held`` version on, or a full version and all since.

        Raises :class:`WeightsDamaged` for a link that is missing.
        """
        links = [version]
        while links[0].form != "full" and links[0].onto != held:
            above = links[0]
            folder = Path(version.folder).parent / folder_name(above.onto)
            below = read_record(folder)
            if below is None or below.version != above.onto or below.form == "adapter":
                raise WeightsDamaged(
                    f"version {version.version} can't be built: {folder}, which version {above.version} goes onto, "
                    f"{'is not there' if below is None else 'is something else'}"
                )
            links.insert(0, below)
        if held is not None and links[0].onto != held:
            raise WeightsDamaged(f"version {held}, which is held, is not in the chain of version {version.version}")
        return links

    def _announced(self, version: PolicyVersion) -> Path:
        return (self._run / version.folder).resolve()


def _verify(links: Sequence[PolicyVersion]) -> None:
    """Before anything is patched: a damaged delta leaves what is held as it is."""
    for link in links:
        verify_files(Path(link.folder), link.sha256)


def _patch(folder: Path, links: Sequence[PolicyVersion]) -> None:
    """Apply deltas, oldest first, to the complete files in ``folder``."""
    for link in links:
        for name in link.sha256:
            file = np.memmap(folder / name.removesuffix(delta.SUFFIX), np.uint8, mode="r+")
            for change in delta.read(Path(link.folder) / name):
                delta.apply(change, file)
