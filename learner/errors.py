"""What the learner refuses, as types that cost nothing to import."""


class WarmStartError(RuntimeError):
    """The warm start ended with a policy that can't copy."""


class BatchError(RuntimeError):
    """A logged batch that can't be trained on: it contradicts itself, or the policy it should come from."""

    def __str__(self) -> str:
        # What is logged never changes, so for all of them there is one way out.
        return f"{super().__str__()}. Fork the run at this step and roll it out again (bin/trajectories fork)"


class DiskFull(RuntimeError):
    """No room for what must be written, for longer than ``learner.disk_wait``."""


class CheckpointFailed(RuntimeError):
    """A checkpoint could not be written."""


class ProcessesError(RuntimeError):
    """The learner's processes did not come together."""


class ExportFailed(RuntimeError):
    """An exported folder is not what its checkpoint holds."""
