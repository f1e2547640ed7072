"""The published ThinkingBox servers, unmodified: every one is forked after its handshake, and can be cloned.

Runs where ENDSTATE_THINKINGBOX_DATA is a checkout; ENDSTATE_THINKINGBOX_PYTHON is a Python that has it installed.
"""

import os
import sys
from pathlib import Path

import pytest

from rollout_engine.sessions import load_servers
from rollout_engine.sessions.doctor import examine

DATA = os.environ.get("ENDSTATE_THINKINGBOX_DATA", "")
PYTHON = os.environ.get("ENDSTATE_THINKINGBOX_PYTHON", sys.executable)


@pytest.mark.skipif(not DATA, reason="needs ENDSTATE_THINKINGBOX_DATA, a checkout of the published data")
async def test_every_published_server_is_forked(monkeypatch):
    monkeypatch.setenv("THINKINGBOX_DATA", DATA)
    findings = await examine(load_servers(Path(DATA, "servers", "servers.yaml"), python=PYTHON))
    assert len(findings) == 9
    assert {finding.server: finding.fault for finding in findings if finding.fault} == {}
    assert {(finding.mode.name, finding.mode.clones, finding.mode.note) for finding in findings} == {("fork", True, "")}
    assert all(finding.open_seconds < finding.start_seconds / 5 for finding in findings)
