"""Run configuration: one YAML file a run, typed, overridable, fingerprinted.

Invariant: a value that isn't declared in a section here can't be set, and a run's resolved configuration, dumped as
JSON, is everything that distinguishes it from another run of the same code. Unknown keys are refused
with the nearest known name.
"""

from protocol.config.actor import Actor, Model
from protocol.config.checks import is_http
from protocol.config.curation import Curation, TaskSampling
from protocol.config.learner import Learner, LoRA, Loss, Optimizer, WarmStart
from protocol.config.loading import STALE_TRUNCATION, dump, load, resolve
from protocol.config.log import Nats
from protocol.config.rollout import Limits, Outage, Retries, Retry, Rollout, SamplingConfig
from protocol.config.run import Config, Evaluation
from protocol.config.section import ConfigError, Fraction, Positive, Seconds
from protocol.config.services import ChatModel, Judge, Price, UserModel
from protocol.config.tasks import Tasks, ThinkingBox

__all__ = [
    "Actor",
    "ChatModel",
    "Config",
    "ConfigError",
    "Curation",
    "Evaluation",
    "Fraction",
    "Judge",
    "Learner",
    "Limits",
    "LoRA",
    "Loss",
    "Model",
    "Nats",
    "Optimizer",
    "Outage",
    "Positive",
    "Price",
    "Retries",
    "Retry",
    "Rollout",
    "STALE_TRUNCATION",
    "SamplingConfig",
    "Seconds",
    "TaskSampling",
    "Tasks",
    "ThinkingBox",
    "UserModel",
    "WarmStart",
    "dump",
    "is_http",
    "load",
    "resolve",
]
