"""The small data set of this folder's neighbour, as it is and as a copy to break."""

import shutil
from pathlib import Path

import pytest

from rollout_engine.environments.thinkingbox.dataset import load_dataset

FOLDER = Path(__file__).parents[1] / "data" / "dataset"


@pytest.fixture(scope="session")
def dataset():
    return load_dataset(FOLDER)


@pytest.fixture
def copy(tmp_path):
    """A copy's folder, and a function that replaces a text in one of its files."""
    folder = tmp_path / "dataset"
    shutil.copytree(FOLDER, folder)

    def change(name, old, new):
        file = folder / name
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))
        return load_dataset(folder)

    change.folder = folder
    return change
