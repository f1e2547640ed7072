"""What the publisher of a data set says that it may be used for.

Invariant: a task of a file that a release beside the data set lists for evaluation only is never trained on.
"""

from __future__ import annotations

import re
from pathlib import Path

from protocol import strict_yaml

_EVALUATION_ONLY = re.compile(
    r"(?:exclusively|only|solely)\s+(?:\w+\s+)?for\s+(?:\w+\s+)?evaluation|(?<!un)evaluation[\s-]+(?:purposes\s+)?only",
    re.IGNORECASE,
)


def evaluation_only(dataset: Path) -> dict[str, str]:
    """Names of test files that may not be trained on, each with the file that says so.

    ``dataset`` is the folder of agents, scenarios and tests. Its publisher's releases lie beside it,
    ``releases/NAME/README.md`` with the test lists of what it covers. A file that is listed in part counts whole: what
    is left out of a list may be another wording of what is on it.
    """
    found: dict[str, str] = {}
    for readme in sorted(dataset.resolve().parent.glob("releases/*/README.md")):
        if _EVALUATION_ONLY.search(re.sub(r"[*_`]", "", readme.read_text("utf-8"))):
            for listed in sorted(readme.parent.glob("*.yaml")):
                tests = strict_yaml.read(listed.read_text("utf-8"))
                found |= {test.partition(":")[0]: str(readme) for test in tests or () if isinstance(test, str)}
    return found
