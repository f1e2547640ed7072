"""Everything that crosses a process boundary, as typed records.

Invariant: a record is readable JSON. Messages, tool calls, rewards, reasons and timings are plain
fields; token arrays are little-endian bytes that msgspec writes as base64, in fields of their own.
Nothing here does I/O, and nothing here imports an array library other than numpy.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import numpy as np

Role = Literal["system", "user", "assistant", "tool"]

FinishReason = Literal[
    "done", "turn_limit", "token_limit", "user_limit", "agent_limit", "end_turn_tool", "user_done", "no_user_llm"
]
"""Why an episode ended: each is graded; a system error has no finish reason.

``turn_limit`` and ``token_limit`` are the run's bounds on the agent, ``agent_limit`` and ``user_limit`` the task's;
``end_turn_tool``: the agent called a tool that ends the conversation; ``user_done``: the user ended it;
``no_user_llm``: the agent waits for a user that the task doesn't have.
"""


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """One call as the agent meant it, or as it was refused.

    Exactly one of ``arguments`` and ``error`` is set. A call with an ``error`` never reaches a
    backend: the agent sees the error as the tool's result.
    """

    name: str
    arguments: dict[str, Any] | None = None
    error: str | None = None


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of a conversation.

    ``content`` is what the reader of that role sees; ``reasoning`` and ``calls`` belong to assistant
    messages only; ``name`` and ``is_error`` to tool messages only. An ``injected`` assistant message
    wasn't sampled: it is part of the task's history, or what a tool says to the user by itself.
    """

    role: Role
    content: str = ""
    reasoning: str | None = None
    calls: tuple[ToolCall, ...] = ()
    name: str | None = None
    is_error: bool = False
    injected: bool = False


class TokenArrays(msgspec.Struct, frozen=True, omit_defaults=True):
    """The token stream of one episode (rules 6 to 8 of the design).

    ``ids``       little-endian int32 [T]: the whole stream, prompt first.
    ``mask``      uint8 [T]: 1 on sampled ids, 0 elsewhere.
    ``logprobs``  little-endian float32 [sum(mask)]: behaviour log-probability of each sampled id.
    ``versions``  little-endian int32 [sum(mask)]: policy version that sampled each id.

    Where top-k or top-p sampling left only some of the vocabulary, also which (the support); empty where it didn't:

    ``support_sizes``  little-endian uint16 [sum(mask)]: from how many ids each was sampled, itself among them.
    ``support``        little-endian int32 [sum(support_sizes)]: those ids, one sampled id's after the other's.
    """

    ids: bytes
    mask: bytes
    logprobs: bytes
    versions: bytes
    support_sizes: bytes = b""
    support: bytes = b""

    @classmethod
    def pack(cls, ids, mask, logprobs, versions, support=None) -> TokenArrays:
        """Encode sequences, ``support`` a sequence of ids for each sampled one; raises ``ValueError`` when their
        lengths contradict each other."""
        ids = np.asarray(ids, "<i4")
        mask = np.asarray(mask, "u1")
        logprobs = np.asarray(logprobs, "<f4")
        versions = np.asarray(versions, "<i4")
        sampled = int(mask.sum())
        if len(ids) != len(mask) or len(logprobs) != sampled or len(versions) != sampled:
            raise ValueError(
                f"token arrays disagree: {len(ids)} ids, {len(mask)} mask entries, {sampled} sampled, "
                f"{len(logprobs)} log-probabilities, {len(versions)} versions"
            )
        if support is not None and len(support) != sampled:
            raise ValueError(f"token arrays disagree: {sampled} sampled, and the support of {len(support)}")
        support = support or ()
        return cls(
            ids.tobytes(),
            mask.tobytes(),
            logprobs.tobytes(),
            versions.tobytes(),
            np.array([len(members) for members in support], "<u2").tobytes(),
            np.array([id for members in support for id in members], "<i4").tobytes(),
        )

    @property
    def encoded_size(self) -> int:
        """Bytes that the arrays take in JSON, less the names of the fields."""
        return sum((len(array) + 2) // 3 * 4 for array in msgspec.structs.astuple(self))

    def unpack(self) -> UnpackedTokens:
        """Decode to numpy arrays (read-only views); raises ``ValueError`` on inconsistent lengths."""
        out = UnpackedTokens(
            np.frombuffer(self.ids, "<i4"),
            np.frombuffer(self.mask, "u1"),
            np.frombuffer(self.logprobs, "<f4"),
            np.frombuffer(self.versions, "<i4"),
            np.frombuffer(self.support_sizes, "<u2"),
            np.frombuffer(self.support, "<i4"),
        )
        sampled = int(out.mask.sum())
        if len(out.ids) != len(out.mask) or len(out.logprobs) != sampled or len(out.versions) != sampled:
            raise ValueError("token arrays disagree in length")
        if len(out.support_sizes) not in (0, sampled) or len(out.support) != out.support_sizes.sum():
            raise ValueError("token arrays disagree in length over the support")
        return out


class UnpackedTokens(msgspec.Struct, frozen=True):
    """Numpy views of :class:`TokenArrays`; shapes as there."""

    ids: Any
    mask: Any
    logprobs: Any
    versions: Any
    support_sizes: Any
    support: Any


class ClaimCheck(msgspec.Struct, frozen=True):
    """Where arrays too large for one message are kept: an object-store name and the sha256 of its bytes."""

    object: str
    sha256: str
    size: int


class RowChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """One row on which the terminal database differs from the expected one.

    ``missing``: expected, not there. ``extra``: there, not expected. ``wrong``: both there, other values;
    then ``expected`` and ``actual`` hold only the columns that differ.
    """

    table: str
    key: tuple[Any, ...]
    kind: Literal["missing", "extra", "wrong"]
    expected: dict[str, Any] | None = None
    actual: dict[str, Any] | None = None


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the grader says of a terminal database. No verdict, no reward (rule 2)."""

    reward: float
    reasons: tuple[str, ...] = ()
    diff: tuple[RowChange, ...] = ()


class ModelCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """One answered request to a model that isn't the policy. Tokens are what its endpoint says; 0 where it doesn't."""

    role: Literal["user", "judge"]
    model: str
    prompt_tokens: int = 0
    """Cached ones included."""
    completion_tokens: int = 0
    cached_tokens: int = 0
    seconds: float = 0.0
    """From the first request to the answer, retries included."""
    cost: float = 0.0
    """At the configured price."""


class TrajectoryId(msgspec.Struct, frozen=True, order=True):
    """(run, step, group, sample, attempt): publishing one id twice changes nothing (rule 10)."""

    run: str
    step: int
    group: int
    sample: int
    attempt: int = 0

    def __str__(self) -> str:
        return f"{self.run}/{self.step}/{self.group}/{self.sample}/{self.attempt}"


class Trajectory(msgspec.Struct, frozen=True, omit_defaults=True):
    """One graded episode."""

    id: TrajectoryId
    task: str
    domain: str
    family: str
    policy_version: int
    """The oldest policy version that sampled any of its tokens; each token's own is in ``tokens``."""
    messages: tuple[Message, ...]
    verdict: Verdict
    finish: FinishReason
    tokens: TokenArrays | None = None
    claim: ClaimCheck | None = None
    seed: int = 0
    actor: str = ""
    sampled_tokens: int = 0
    prompt_tokens: int = 0
    """Tokens sent to the actor, summed over the episode's requests."""
    started_at: float = 0.0
    """Unix seconds."""
    timings: dict[str, float] = {}
    """Seconds spent by part: actor, tools, user, grader, total."""
    ranking: str = ""
    """Whose ranking its knowledge search had; empty where it had none."""
    model_calls: tuple[ModelCall, ...] = ()
    """Requests to the models of the simulated user and the judge."""
    newer_versions: tuple[int, ...] = ()
    """The other versions that sampled its tokens, ascending: weights that changed during the episode."""
    learnt_tokens: int = 0
    """Length of its token stream up to the last sampled token."""

    @property
    def reward(self) -> float:
        return self.verdict.reward

    @property
    def versions(self) -> tuple[int, ...]:
        """Every policy version that sampled any of its tokens, ascending."""
        return (self.policy_version, *self.newer_versions)


class Attempts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Attempts that an engine is about to start, and those that a system error ended, in one step.

    On the log before the first of them starts, so that an engine that takes over a step knows what was in flight
    when the last one was killed: everything started that is neither a trajectory nor an error was cancelled.
    """

    run: str
    step: int
    engine: str
    """Which start of an engine wrote this."""
    number: int
    """Place among the records of that engine in that step."""
    started: tuple[tuple[int, int, int], ...] = ()
    """(group, sample, attempt)."""
    failed: tuple[tuple[int, int, int, str], ...] = ()
    """(group, sample, attempt, kind of system error)."""


class Ledger(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where every episode that a step started has ended (rule 3)."""

    started: int
    trained: int = 0
    zero_variance: int = 0
    surplus: int = 0
    cancelled: int = 0
    system_error: dict[str, int] = {}
    """Count by kind of system error."""
    carried: int = 0
    """Episodes that earlier steps started and left as surplus, and that are in this step's buckets instead."""

    def check(self) -> None:
        """Raise ``ValueError`` unless the buckets sum to the number started here and carried over."""
        total = self.trained + self.zero_variance + self.surplus + self.cancelled + sum(self.system_error.values())
        if total != self.started + self.carried:
            raise ValueError(
                f"ledger does not sum: {self.started} started, {self.carried} carried over, {total} in buckets ({self})"
            )


class GroupRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One launched group: its task, its whole set of samples, and the bucket it ended in."""

    group: int
    task: str
    trajectories: tuple[TrajectoryId, ...]
    rewards: tuple[float, ...]
    bucket: Literal["trained", "zero_variance", "surplus"]
    versions: tuple[int, ...] = ()
    """Policy versions that sampled its tokens, ascending."""
    tokens: tuple[int, ...] = ()
    """Of each trajectory: length of its token stream up to the last sampled token. With it, a learner of several
    processes knows which trajectories each has to read. Empty in logs of before it was recorded."""
    sampled: tuple[int, ...] = ()
    """Of each trajectory: sampled tokens. Empty where ``tokens`` is."""


class Batch(msgspec.Struct, frozen=True, omit_defaults=True):
    """The manifest of one step's batch. ``groups`` lists every complete group in launch order, but for those of a pool
    or configuration that the engine no longer had; the learner trains on those whose bucket is ``trained``."""

    run: str
    step: int
    policy_version: int
    """The oldest version that sampled any of its tokens: ``step``, or up to ``rollout.max_staleness`` less."""
    group_size: int
    groups: tuple[GroupRecord, ...]
    ledger: Ledger
    outcome: Literal["full", "short"] = "full"
    seconds: float = 0.0
    bound: Literal["", "max_groups", "max_incomplete", "batch"] = ""
    """The bound (a key of the section ``rollout``) that ended a short batch."""
    waves: int = 1
    """Times that groups were launched: each wave after the first costs the wall time of an episode or more."""
    pool: dict[str, int] = {}
    """Tasks of the pool by difficulty band, by their posteriors when the step began."""


class Horizon(msgspec.Struct, frozen=True):
    """How far back a run's log reaches, once retention has removed what checkpoints hold (``nats.retain``).

    On the log before anything is removed. Manifests are never removed: they are the ledger of the whole run.
    """

    run: str
    first: int
    """The first step whose trajectories are kept."""


class Stretch(msgspec.Struct, frozen=True):
    """Steps of a run that were learnt under one configuration, up to ``until``, which it is not for any more."""

    until: int
    config: dict[str, Any]
    """The resolved configuration."""


class Origin(msgspec.Struct, frozen=True):
    """Where a forked run comes from. Its log begins with its parent's steps before ``step``: the same trajectories
    and manifests, under ids of the new run, so that whatever reads a log reads this one."""

    run: str
    parent: str
    step: int
    """The first step of its own."""
    history: tuple[Stretch, ...] = ()
    """What the steps before ``step`` were learnt under, ascending: more than one when forks are forked."""


class Probe(msgspec.Struct, frozen=True):
    """A token sequence and the learner's log-probabilities on it, by which an actor proves its weights.

    ``ids`` int32 [T]; ``logprobs`` float32 [T - 1], of ids[1:] under the announced weights at temperature 1.
    """

    ids: bytes
    logprobs: bytes
    tolerance: float
    """Largest mean absolute difference at which an actor may serve."""


class PolicyVersion(msgspec.Struct, frozen=True, omit_defaults=True):
    """Announces policy version ``version``: the weights after ``version`` updates, which step ``version`` is rolled
    out with, and up to ``rollout.max_staleness`` steps after it."""

    run: str
    version: int
    folder: str
    """Folder of safetensors files with Hugging Face names, and of the model's other files."""
    sha256: dict[str, str]
    """Digest of each weight file, by file name."""
    probe: Probe
    final: bool = False
    """True on the last version of a run: no step follows it."""
    form: Literal["full", "delta", "adapter"] = "full"
    """What ``folder`` holds: ``full``: complete weight files; ``delta``: what changed since version ``onto``;
    ``adapter``: a low-rank term on the weights of version ``onto``."""
    onto: int | None = None
    """The version that must be there first; None for ``full``."""
    whole: dict[str, str] = {}
    """Digest of each complete weight file, by file name, once they are built; empty for ``full``."""

    @property
    def complete(self) -> dict[str, str]:
        """Digest of each complete weight file, by file name, in every form."""
        return self.sha256 if self.form == "full" else self.whole


class ActorLoad(msgspec.Struct, frozen=True, omit_defaults=True):
    """An actor's own load figures."""

    running: int = 0
    waiting: int = 0
    kv_use: float = 0.0
    """Share of the cache of keys and values that is in use."""
    preemptions: int = 0
    """Requests thrown out of that cache since the server started, because it was full."""


class ActorStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """An actor's heartbeat. ``serving`` is true only while weights of its are proven (rule 20)."""

    id: str
    url: str
    model: str
    version: int
    """The last version that it has proven, -1 for none. While it loads the next one it goes on serving."""
    serving: bool
    load: ActorLoad = ActorLoad()
    proof: float | None = None
    """Mean absolute difference of log-probabilities on the probe."""
    time: float = 0.0
    note: str = ""


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """Live progress, not kept: for terminals and dashboards."""

    kind: str
    time: float
    data: dict[str, Any] = {}


def encode(record: msgspec.Struct) -> bytes:
    """A record as JSON."""
    return msgspec.json.encode(record)


def decode(data: bytes, kind: type):
    """JSON as a record of ``kind``; raises ``msgspec.ValidationError`` naming the field."""
    return msgspec.json.decode(data, type=kind)
