"""What torch reads when it is loaded: import this module before torch.

`ATEN_CPU_CAPABILITY=avx2` makes torch run the same code on every x86-64 processor with AVX2. A person's own setting is
kept.
"""

import os

os.environ.setdefault("ATEN_CPU_CAPABILITY", "avx2")
