"""Models in this process; see the section with that name in docs/models.md.

The variables below must be set before torch is imported, and users may override them.
"""

import os

# Threads that spin for a long time while waiting for each other make a busy machine many times slower, but threads
# that never spin halve the speed of an idle machine.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
# Some processors advertise AMX, but kill the process at the first bfloat16 product that uses it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
