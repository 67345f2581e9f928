"""Models in this process; see the section with that name in docs/models.md.

The variables below must be set before torch is imported, and users may override them.
"""

import os

# Threads that spin long while they wait for each other slow down a busy machine many times; threads that never spin
# halve the speed of an idle one.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
# Some processors advertise AMX and end the process at the first bfloat16 product with it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
