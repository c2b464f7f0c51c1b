"""What CUDA operators take inside one call, one file for each family; importing it registers them all."""

from dnnmem_tune.frontends.torch.plans import attention as attention
from dnnmem_tune.frontends.torch.plans import convolution as convolution
from dnnmem_tune.frontends.torch.plans import elementwise as elementwise
from dnnmem_tune.frontends.torch.plans import indexing as indexing
from dnnmem_tune.frontends.torch.plans import losses as losses
from dnnmem_tune.frontends.torch.plans import matmul as matmul
from dnnmem_tune.frontends.torch.plans import normalization as normalization
from dnnmem_tune.frontends.torch.plans import recurrent as recurrent
from dnnmem_tune.frontends.torch.plans import reductions as reductions
from dnnmem_tune.frontends.torch.plans import sampling as sampling
from dnnmem_tune.frontends.torch.plans import softmax as softmax
from dnnmem_tune.frontends.torch.plans import spectral as spectral
