"""What operators take beyond their outputs: kernel scratch, workspaces, reserves.

No framework is imported here: a rule gets numbers and the target's properties, and gives bytes.
Importing this package registers every rule.
"""

from dnnmem_tune.operators import attention as attention
from dnnmem_tune.operators import convolution as convolution
from dnnmem_tune.operators import memory_pattern as memory_pattern
from dnnmem_tune.operators import normalization as normalization
from dnnmem_tune.operators import recurrent as recurrent
from dnnmem_tune.operators import reduction as reduction
from dnnmem_tune.operators import sorting as sorting
from dnnmem_tune.operators import temp_space as temp_space
