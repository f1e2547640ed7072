"""``model`` and ``actor``: what is served, and by which servers."""

from __future__ import annotations

from typing import Literal

from protocol.config.section import Positive, Seconds, Section


class Model(Section):
    folder: str = ""
    """Hugging Face model folder: weights, config.json, tokenizer.json, chat template. Relative to the run's folder."""
    sizes: str = ""
    """A folder with a config.json of the same sizes, for the learner's dry run before ``folder`` is there. Relative to
    the current folder, as a run's own folder is."""
    max_model_len: Positive = 1024


class Actor(Section):
    urls: tuple[str, ...] = ()
    """Attach to these servers; empty: start one of our own."""
    host: str = "127.0.0.1"
    """Address of our own server: it listens there and engines reach it there. It has no authentication and takes
    weights from whoever asks, so keep it off public networks."""
    port: int = 8100
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    max_num_seqs: Positive = 64
    kv_cache_gib: Positive = 1
    extra_args: tuple[str, ...] = ()
    cache: str = ""
    """Folder in which an actor builds complete weights where less was pushed (``learner.full_push_every`` above 1),
    such as /dev/shm; it needs room for one version. Empty: the run's folder, which may be on slower, shared storage."""
    start_timeout: Seconds = 600.0
    health_every: Seconds = 2.0
    health_failures: Positive = 3
    update_timeout: Seconds = 120.0
