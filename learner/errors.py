"""What the learner refuses, as types that cost nothing to import."""


class BatchError(RuntimeError):
    """A logged batch that can't be trained on: it contradicts itself, or the policy it should come from."""
