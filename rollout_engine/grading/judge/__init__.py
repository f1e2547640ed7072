"""The judge: a model that answers yes or no about texts, for tests that ask it."""

from rollout_engine.grading.judge.judge import METHODS, Judge
from rollout_engine.grading.judge.rubrics import RubricConfig, RubricJudge, RubricScore, weighted_reward

__all__ = ["METHODS", "Judge", "RubricConfig", "RubricJudge", "RubricScore", "weighted_reward"]
