"""Tasks, servers and graders of the ThinkingBox ecosystem, run as they are."""
