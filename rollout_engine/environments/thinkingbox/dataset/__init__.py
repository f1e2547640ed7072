"""Data sets of the ThinkingBox ecosystem: agents, scenarios and test cases, put together into cases.

dataset = load_dataset("dataset")
cases = dataset.hydrate(["hotel.py", "trips.py:test_cancel"], agent="think", tags=["domain:misc"])
"""

from rollout_engine.environments.thinkingbox.dataset.case import (
    Agent,
    Case,
    Fixture,
    GoldenCall,
    Scenario,
    formatted,
)
from rollout_engine.environments.thinkingbox.dataset.dataset import Dataset, load_dataset
from rollout_engine.environments.thinkingbox.dataset.errors import DatasetError
from rollout_engine.environments.thinkingbox.dataset.hydrated import hydrated_line, read_hydrated, write_hydrated
from rollout_engine.environments.thinkingbox.dataset.schema import (
    HistoryMessage,
    ParallelToolCall,
    Text,
    ToolCall,
    ToolDefinition,
    ToolOverride,
    ToolResponse,
)
from rollout_engine.environments.thinkingbox.dataset.selection import select
from rollout_engine.environments.thinkingbox.dataset.tags import Tags

__all__ = [
    "Agent",
    "Case",
    "Dataset",
    "DatasetError",
    "Fixture",
    "GoldenCall",
    "HistoryMessage",
    "ParallelToolCall",
    "Scenario",
    "Tags",
    "Text",
    "ToolCall",
    "ToolDefinition",
    "ToolOverride",
    "ToolResponse",
    "formatted",
    "hydrated_line",
    "load_dataset",
    "read_hydrated",
    "select",
    "write_hydrated",
]
