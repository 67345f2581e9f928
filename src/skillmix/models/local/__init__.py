"""Models in this process: see the section of that name in docs/models.md.

The variables below must be set before torch is imported, and users may set others.
"""

import os

# Threads that spin long while they wait for each other make a busy machine many times slower; threads that do not
# spin at all make an idle machine half as fast.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
# Some processors advertise AMX and end the process at the first bfloat16 product with it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
