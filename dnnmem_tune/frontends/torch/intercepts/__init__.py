"""Operators that fake tensors answer otherwise than a CUDA run; importing it registers them all."""

from dnnmem_tune.frontends.torch.intercepts import accumulation as accumulation
from dnnmem_tune.frontends.torch.intercepts import attention as attention
from dnnmem_tune.frontends.torch.intercepts import convolution as convolution
from dnnmem_tune.frontends.torch.intercepts import host_values as host_values
from dnnmem_tune.frontends.torch.intercepts import in_place as in_place
from dnnmem_tune.frontends.torch.intercepts import losses as losses
from dnnmem_tune.frontends.torch.intercepts import matmul as matmul
from dnnmem_tune.frontends.torch.intercepts import missing_kernels as missing_kernels
from dnnmem_tune.frontends.torch.intercepts import normalization as normalization
from dnnmem_tune.frontends.torch.intercepts import recurrent as recurrent
from dnnmem_tune.frontends.torch.intercepts import storages as storages
