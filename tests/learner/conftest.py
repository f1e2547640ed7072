"""Eight virtual devices for the learner's tests, set before JAX looks at its first device, and one compilation
cache for the session: most tests compile the same tiny programs, some of them in processes of their own. Programs are
compiled in a hurry: compiling is most of what these tests cost."""

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_force_host_platform_device_count=8 "
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
CACHE = tempfile.TemporaryDirectory(prefix="endstate-jax-")
os.environ["JAX_COMPILATION_CACHE_DIR"] = CACHE.name
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"
sys.path.insert(0, str(Path(__file__).parent))
