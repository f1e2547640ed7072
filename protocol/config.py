"""Run configuration: one YAML file a run, typed, overridable, fingerprinted.

Invariant: a value that isn't declared here can't be set, and a run's resolved configuration, dumped as
JSON, is everything that distinguishes it from another run of the same code. Unknown keys are refused
with the nearest known name.
"""

from __future__ import annotations

import difflib
import hashlib
import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

import msgspec
import yaml
from msgspec import Meta

from protocol import strict_yaml

Positive = Annotated[int, Meta(gt=0)]
Seconds = Annotated[float, Meta(gt=0)]
Fraction = Annotated[float, Meta(ge=0, le=1)]

STALE_TRUNCATION = 2.0
"""``learner.loss.truncated_is`` of a run with stale tokens that names none: what asynchronous trainers use."""


class ConfigError(ValueError):
    """A configuration that can't be used; the message names the key and the way out."""


class _Section(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    pass


class Nats(_Section):
    url: str = "nats://127.0.0.1:4222"
    connect_timeout: Seconds = 5.0
    publish_timeout: Seconds = 10.0
    """Bound on one request; one that goes unanswered is sent again."""
    reconnect: Seconds = 60.0
    """Bound on riding out a lost server, over all retries of one operation."""
    full_wait: Seconds = 600.0
    """Bound on waiting for room while the server's storage is full."""
    wait: Seconds = 3600.0
    """Bound on waiting for a policy version or a batch whose caller names none of its own."""
    retain: Literal["all", "checkpoint"] = "all"
    """What the log keeps. all: every trajectory. checkpoint: manifests of all steps, and trajectories of those that a
    learner restored from any of its kept checkpoints could still need."""


class Model(_Section):
    folder: str = ""
    """Hugging Face model folder: weights, config.json, tokenizer.json, chat template. Relative to the run's folder."""
    max_model_len: Positive = 1024


class ThinkingBox(_Section):
    """Tasks in the ThinkingBox formats, and the MCP servers that they are played on.

    A path that is empty is looked for in the checkout of ``thinkingbox-data`` that $ENDSTATE_THINKINGBOX_DATA names.
    """

    train: tuple[str, ...] = ()
    """Candidate training tasks: test files, ``file:test``, folders, test lists or hydrated JSON lines. A path is
    relative to the data set's folder."""
    heldout: tuple[str, ...] = ()
    """Tasks to evaluate on, selected alike."""
    tags: tuple[str, ...] = ()
    """Only tasks with all of these, for example ``domain:travel``."""
    agent: str = ""
    """Empty: the data set's only one."""
    data: str = ""
    """Folder with agent/, scenario/ and test_case/; empty: dataset/ of the checkout."""
    servers: str = ""
    """Servers file; empty: servers/servers.yaml of the checkout."""
    python: str = ""
    """Interpreter that stands for {python} in it; empty: $ENDSTATE_THINKINGBOX_PYTHON, else the engine's own."""
    env: dict[str, str] = {}
    """Added to the environment of every server."""
    modules: tuple[str, ...] = ()
    """Folders with modules of the tests' fixtures; a process without privileges must be able to read them."""
    proxy: str = ""
    """URL of a Session Proxy that serves the tools; empty: the engine hosts their sessions itself."""
    proxy_key_env: str = ""
    """Name of the environment variable that holds the proxy's key."""
    search: str = "off"
    """Knowledge search for the servers: off, auto (a Typesense that answers, else the embedded stand-in), the URL of a
    Typesense, or the path of a typesense-server."""
    clone: bool = True
    """Initialise a group's session once and clone it for its samples, where the servers allow that."""
    open: Positive = 512
    """Sessions open at once; more wait."""
    open_timeout: Seconds = 120.0

    @property
    def used(self) -> bool:
        """Whether any task is selected."""
        return bool(self.train or self.heldout)


class Tasks(_Section):
    domains: tuple[str, ...] = ("travel", "retail")
    """Of the engine's own tasks; none for ThinkingBox tasks alone."""
    train: Positive = 160
    """Candidate training tasks, over all domains."""
    heldout: Positive = 64
    thinkingbox: ThinkingBox = ThinkingBox()


class Limits(_Section):
    """Bounds of one episode. Turn and token bounds are scored; the waits (seconds) are system errors."""

    agent_turns: Positive = 12
    user_turns: Positive = 6
    turn_tokens: Positive = 96
    episode_tokens: Positive = 900
    """Whole stream, prompt included."""
    episode: Seconds = 120.0
    generate: Seconds = 60.0
    tool_call: Seconds = 10.0
    user: Seconds = 60.0
    grader: Seconds = 10.0


class SamplingConfig(_Section):
    temperature: Annotated[float, Meta(gt=0)] = 1.0
    top_k: Annotated[int, Meta(ge=-1)] = -1
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0


class Price(_Section):
    """Price of a million tokens, in whatever currency."""

    prompt: Annotated[float, Meta(ge=0)] = 0.0
    cached: Annotated[float, Meta(ge=0)] = 0.0
    """Of prompt tokens that the endpoint had cached."""
    completion: Annotated[float, Meta(ge=0)] = 0.0


class ChatModel(_Section):
    """A model behind an OpenAI-compatible chat endpoint."""

    endpoint: str = ""
    """Base URL, for example http://127.0.0.1:8000/v1."""
    model: str = ""
    api_key_env: str = ""
    """Name of the environment variable that holds the key."""
    temperature: Annotated[float, Meta(ge=0)] = 0.0
    max_tokens: Annotated[int, Meta(ge=0)] = 0
    """Of an answer; 0: the endpoint's own bound."""
    timeout: Seconds = 60.0
    """Bound on one request."""
    retries: Annotated[int, Meta(ge=0)] = 3
    """Requests after the first, on a lost connection and on a status that passes."""
    max_retry_after: Seconds = 60.0
    """An endpoint that asks for a longer pause than this isn't asked again."""
    price: Price = Price()


class UserModel(ChatModel):
    kind: Literal["scripted", "llm"] = "scripted"
    """``llm`` needs an endpoint and a model."""
    temperature: Annotated[float, Meta(ge=0)] = 0.3
    can_end: bool = False
    """ThinkingBox tasks: whether the user, too, may end the conversation; it then has one turn more."""


class Judge(ChatModel):
    """The model that answers yes or no about texts, for tests that ask it."""

    kind: Literal["llm", "agreeable"] = "llm"
    """``agreeable`` says yes to everything without a model: for checks and load tests that scripts play, and refused
    elsewhere."""
    form: Literal["word", "motivation"] = "word"
    """What a question about a text is answered with: one word, or JSON with a motivation."""


class Retry(_Section):
    """How often, and how soon, one sample runs again after system errors of one kind."""

    times: Annotated[int, Meta(ge=0)] = 3
    backoff: Seconds = 0.5
    """Seconds before the first retry; doubled for each further one."""
    max_backoff: Seconds = 30.0


class Retries(_Section):
    """By kind of system error; a kind that isn't named here goes by ``default``."""

    default: Retry = Retry()
    actor: Retry | None = None
    backend: Retry | None = None
    user: Retry | None = None
    judge: Retry | None = None
    grader: Retry | None = None
    template: Retry | None = None
    episode_timeout: Retry | None = None
    max_retry_after: Seconds = 600.0
    """A service that asks for a longer pause than this (``Retry-After``) gets this one."""

    def of(self, kind: str) -> Retry:
        """The retry of an error whose ``kind`` is as the ledger writes it."""
        return getattr(self, kind.replace("-", "_"), None) or self.default


class Outage(_Section):
    """When system errors of one kind are nobody's fault but a service's: launches pause and probe it."""

    errors: Positive = 8
    """First attempts that ended in an error of one kind, over at least three tasks, among the last ``among``: an
    outage. As many successes in a row end it."""
    among: Positive = 12
    probe: Seconds = 5.0
    """Before the first probe episode; doubled after each that fails."""
    max_probe: Seconds = 120.0
    longest: Seconds = 1800.0
    """Bound on a pause without a single success; then the run stops and says what to do."""


class Rollout(_Section):
    groups: Positive = 8
    group_size: Annotated[int, Meta(ge=2)] = 8
    concurrency: Positive = 144
    """Episodes at once, at most: as many as the actors' own load allows."""
    min_concurrency: Positive = 8
    """Episodes at once however loaded the actors are (at most ``concurrency``)."""
    max_staleness: Annotated[int, Meta(ge=0, le=8)] = 0
    """Policy versions that a step may lag behind. 0: synchronous, step s is sampled by version s alone. 1: the engine
    rolls out step s + 1 while the learner updates on step s, and each token may be of version s or s + 1."""
    max_groups: Positive = 24
    """Bound on clean (whole) groups in one step, replacements included."""
    max_incomplete: Annotated[int, Meta(ge=0)] = 8
    """Bound on groups that stay incomplete in one step (a sample out of retries); each is replaced until then."""
    at_bound: Literal["short", "stop"] = "short"
    """At a bound (``max_groups``, ``max_incomplete``, ``batch``) with too few informative groups: publish the short
    batch, or stop with a diagnosis."""
    wave_confidence: Annotated[float, Meta(ge=0, lt=1)] = 0.8
    """Chance, by the tasks' posteriors, that one wave of groups fills the batch without a second. 0: launch exactly
    as many groups as are missing."""
    retries: Retries = Retries()
    outage: Outage = Outage()
    batch: Seconds = 1800.0
    """Bound on one step's rollouts, not counting outages and waits for NATS; and on waiting for an actor at its policy
    version."""
    sampling: SamplingConfig = SamplingConfig()
    limits: Limits = Limits()
    user: UserModel = UserModel()


class Curation(_Section):
    attempts: Positive = 8
    """Probe attempts a candidate task."""
    keep: tuple[str, ...] = ("difficult", "intermediate", "frequently_solved")
    min_clean: Positive = 4


class TaskSampling(_Section):
    """Which tasks a step draws."""

    mode: Literal["fixed", "adaptive"] = "fixed"
    """fixed: the pool is visited evenly, as in the published run. adaptive: tasks are drawn by the chance that their
    group comes out mixed."""
    forgetting: Annotated[float, Meta(ge=0, lt=1)] = 0.05
    """Share of its weight that evidence on a task's pass rate loses with every step: the policy changes."""
    exploration: Fraction = 0.25
    """Adaptive only: share of a step's groups that go on visiting the pool evenly, so that no task starves."""


class Optimizer(_Section):
    learning_rate: Annotated[float, Meta(gt=0)] = 1e-6
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    weight_decay: Annotated[float, Meta(ge=0)] = 0.0
    clip_norm: Annotated[float, Meta(gt=0)] = 1.0
    warmup_steps: Annotated[int, Meta(ge=0)] = 0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Decay to zero over the run's steps, after the warm-up."""
    memory: Literal["device", "pinned_host"] = "device"
    """Where optimizer state lives."""


class Loss(_Section):
    clip_low: Annotated[float, Meta(gt=0)] = 0.2
    clip_high: Annotated[float, Meta(gt=0)] = 0.2
    dual_clip: float | None = 3.0
    truncated_is: Annotated[float, Meta(gt=0)] | None = None
    """Cap of the truncated importance weight between learner and behaviour log-probabilities. None: off, and with
    ``rollout.max_staleness`` above 0, where stale tokens must be weighed, 2."""


class Learner(_Section):
    mesh: str = "1x1"
    """data x model."""
    steps: Positive = 50
    row_tokens: Positive = 1024
    """Length of a packed row."""
    rows_per_microbatch: Positive = 8
    logprob_chunk: Positive = 512
    """Places whose logits exist at once."""
    remat: bool = True
    """Recompute each layer in the backward pass: less memory for a third more work."""
    kernels: Literal["auto", "plain"] = "auto"
    """``auto``: in bfloat16 on Hopper those of jax-linear-attention and cuDNN; ``plain``: plain JAX everywhere."""
    param_dtype: Literal["float32", "bfloat16"] = "float32"
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    param_memory: Literal["device", "pinned_host"] = "device"
    weights_dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Of the weights pushed to the actors."""
    checkpoint_every: Positive = 5
    keep_checkpoints: Positive = 2
    keep_weights: Positive = 3
    """Pushed policy versions kept on disk (version 0 and the last are always kept)."""
    batch_timeout: Seconds = 3600.0
    disk_wait: Seconds = 600.0
    """Bound on waiting for room on a full disk, for weights or a checkpoint."""
    proof_tolerance: Annotated[float, Meta(gt=0)] = 0.05
    optimizer: Optimizer = Optimizer()
    loss: Loss = Loss()


class WarmStart(_Section):
    """Supervised warm start of the base policy on imperfect scripted demonstrations."""

    demonstrations: Positive = 5000
    steps: Positive = 600
    batch: Positive = 8
    muon_rate: Annotated[float, Meta(gt=0)] = 0.02
    adam_rate: Annotated[float, Meta(gt=0)] = 5e-3
    warmup: Annotated[int, Meta(ge=0)] = 30
    copied_tokens_weight: Annotated[float, Meta(gt=0)] = 3.0
    """Loss weight of the agent's tokens that it copies, ids and amounts; its other tokens weigh 1."""
    other_tokens_weight: Fraction = 0.2
    """Loss weight of tokens that are not the agent's."""


class Actor(_Section):
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
    start_timeout: Seconds = 600.0
    health_every: Seconds = 2.0
    health_failures: Positive = 3
    update_timeout: Seconds = 120.0


class Evaluation(_Section):
    repeat: Positive = 8
    concurrency: Positive = 64
    token_price: float = 1.0
    """Price of a million tokens, for the cost figures."""


class Config(_Section):
    run: str
    seed: Annotated[int, Meta(ge=0, lt=2**32)] = 0
    folder: str = "runs"
    """A run's files live in ``folder/run``."""
    nats: Nats = Nats()
    model: Model = Model()
    tasks: Tasks = Tasks()
    curation: Curation = Curation()
    sampling: TaskSampling = TaskSampling()
    rollout: Rollout = Rollout()
    learner: Learner = Learner()
    warmstart: WarmStart = WarmStart()
    actor: Actor = Actor()
    evaluation: Evaluation = Evaluation()
    judge: Judge = Judge()

    @property
    def path(self) -> Path:
        """The run's folder."""
        return Path(self.folder) / self.run

    def fingerprint(self) -> str:
        """First 16 hex digits of the sha256 of the resolved configuration."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()[:16]


def load(path: str | Path, overrides: list[str] | tuple[str, ...] = ()) -> Config:
    """Read a YAML file and apply ``key.path=value`` overrides (values are YAML).

    Raises :class:`ConfigError` naming the file, the key, and the nearest known name of an unknown key.
    """
    try:
        tree = strict_yaml.read(Path(path).read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read configuration {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: a run configuration is a mapping, not {type(tree).__name__}")
    for override in overrides:
        _apply(tree, override)
    return resolve(tree, str(path))


def resolve(tree: dict[str, Any], source: str = "configuration") -> Config:
    """A typed configuration from plain data; raises :class:`ConfigError`."""
    try:
        config = msgspec.convert(tree, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {_explain(str(error))}") from error
    if endless := _not_finite(msgspec.to_builtins(config)):
        raise ConfigError(f"{source}: {endless} must be a finite number")
    if not re.fullmatch(r"[a-z0-9-]+", config.run):
        raise ConfigError(f"{source}: run {config.run!r} is not a slug: lower-case letters, digits and hyphens")
    if config.rollout.max_groups < config.rollout.groups:
        raise ConfigError(
            f"{source}: rollout.max_groups ({config.rollout.max_groups}) is below rollout.groups "
            f"({config.rollout.groups}), so no batch could ever fill"
        )
    if config.rollout.outage.errors > config.rollout.outage.among:
        raise ConfigError(
            f"{source}: rollout.outage.errors ({config.rollout.outage.errors}) is above rollout.outage.among "
            f"({config.rollout.outage.among}), so no outage could ever be noticed"
        )
    for kind, retry in msgspec.structs.asdict(config.rollout.retries).items():
        if isinstance(retry, Retry) and retry.backoff > retry.max_backoff:
            raise ConfigError(
                f"{source}: rollout.retries.{kind}.backoff ({retry.backoff:g}) is above its max_backoff "
                f"({retry.max_backoff:g})"
            )
    if not config.rollout.outage.probe <= config.rollout.outage.max_probe < config.rollout.outage.longest:
        raise ConfigError(
            f"{source}: rollout.outage.probe ({config.rollout.outage.probe:g}), .max_probe "
            f"({config.rollout.outage.max_probe:g}) and .longest ({config.rollout.outage.longest:g}) must be in this "
            "order, so that an outage is probed before it has lasted too long"
        )
    longest = config.rollout.limits.episode_tokens
    if config.learner.row_tokens < longest:
        raise ConfigError(
            f"{source}: learner.row_tokens ({config.learner.row_tokens}) is below rollout.limits.episode_tokens "
            f"({longest}), so a long episode would fit no row"
        )
    if config.rollout.user.kind == "llm" and not (config.rollout.user.endpoint and config.rollout.user.model):
        raise ConfigError(f"{source}: rollout.user.kind is llm, so rollout.user.endpoint and .model must be set")
    if bool(config.judge.endpoint) != bool(config.judge.model):
        raise ConfigError(f"{source}: judge.endpoint and judge.model must be set both, or neither")
    for key, url in [
        ("rollout.user.endpoint", config.rollout.user.endpoint),
        ("judge.endpoint", config.judge.endpoint),
        ("tasks.thinkingbox.proxy", config.tasks.thinkingbox.proxy),
        *(("actor.urls", u) for u in config.actor.urls),
    ]:
        if url and not is_http(url):
            raise ConfigError(f"{source}: {key}: {url!r} is no URL, for example http://127.0.0.1:8000")
    return _weigh_stale_tokens(config)


def _weigh_stale_tokens(config: Config) -> Config:
    """Tokens of older versions are learnt from by truncated importance weights, never as if they were current."""
    learner = config.learner
    if not config.rollout.max_staleness or learner.loss.truncated_is is not None:
        return config
    loss = msgspec.structs.replace(learner.loss, truncated_is=STALE_TRUNCATION)
    return msgspec.structs.replace(config, learner=msgspec.structs.replace(learner, loss=loss))


def dump(config: Config) -> str:
    """The resolved configuration as YAML, with its fingerprint in a comment."""
    tree = msgspec.to_builtins(config)
    return f"# fingerprint {config.fingerprint()}\n" + strict_yaml.write(tree)


def _apply(tree: dict[str, Any], override: str) -> None:
    key, sign, value = override.partition("=")
    if not sign or not all(key.split(".")):
        raise ConfigError(f"override {override!r} is not KEY=VALUE, for example learner.optimizer.learning_rate=1e-6")
    *parents, leaf = key.split(".")
    node = tree
    for name in parents:
        node = node.setdefault(name, {})
        if not isinstance(node, dict):
            raise ConfigError(f"override {override!r}: {name} is a value, not a section")
    try:
        node[leaf] = strict_yaml.read(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"override {override!r}: the value is not YAML: {error}") from error


def is_http(url: str) -> bool:
    """Whether a client can be pointed at it: a scheme, a host, and no port that can't be."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and url.isprintable()
    except ValueError:  # half a bracket, a port beyond 65535
        return False


def _not_finite(tree: Any, key: str = "") -> str | None:
    """The key of an infinite number or NaN: no bound, and no number that JSON can write."""
    if isinstance(tree, dict):
        found = (_not_finite(value, f"{key}.{name}".lstrip(".")) for name, value in tree.items())
        return next(filter(None, found), None)
    return key if isinstance(tree, float) and not math.isfinite(tree) else None


def _explain(message: str) -> str:
    unknown = re.search(r"unknown field `(.+?)`(?: - at `\$\.?(.*?)`)?$", message)
    if not unknown:
        return message.replace("`$.", "`")
    name, where = unknown.group(1), unknown.group(2) or ""
    section: Any = Config
    for part in [p for p in where.split(".") if p]:
        section = {f.name: f.type for f in msgspec.structs.fields(section)}[part]
        # A section that may be left out is a union with None.
        section = next((kind for kind in get_args(section) if kind is not type(None)), section)
    known = [f.name for f in msgspec.structs.fields(section)]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else f"; known here: {', '.join(known)}"
    return f"unknown key {'.'.join(filter(None, [where, name]))!r}{hint}"
