"""Questions that libraries ask of values on the card, and the answer a real card gives.

Values are zero on the emulated card, and most questions do not matter. These do: the answer
decides which tensors are made, and is the same in every training run without padding.
"""

from __future__ import annotations

import sys
from typing import Any

from dnnmem_tune.frontends.torch.emulated.after_import import when_imported


def answer_known_questions() -> None:
    """Give the answers, in this process, to every library that is imported or will be."""
    when_imported("transformers.masking_utils", _nothing_is_masked)
    when_imported("torch.nn.parallel.distributed", _models_are_the_same)
    when_imported("torch.distributed.distributed_c10d", _ranks_say_the_same)


def _nothing_is_masked(masking: Any) -> None:
    """No token is padding and no sequences are packed, so that models leave out their attention masks.

    The question itself is still asked: its operators run, and the host waits for them as it does on a card.

    Source: ``masking_utils.py`` of transformers 5.18.
    """
    find_packed = getattr(masking, "find_packed_sequence_indices", None)
    if find_packed is not None:

        def none_are_packed(position_ids: Any) -> None:
            find_packed(position_ids)

        masking.find_packed_sequence_indices = none_are_packed
    are_all = getattr(masking, "fast_all", None)
    if are_all is not None:

        def all_are(tensor: Any) -> bool:
            bool(are_all(tensor))
            return True

        masking.fast_all = all_are


def _models_are_the_same(parallel: Any) -> None:
    """Every rank holds the same model: the sizes that are compared reach ``DistributedDataParallel`` as zeros.

    Source: ``_verify_param_shape_across_processes`` in ``torch/distributed/utils.py``, release 2.14.
    """
    verify = getattr(parallel, "_verify_param_shape_across_processes", None)
    if verify is None:
        return

    def verify_and_believe(*args: Any, **kwargs: Any) -> Any:
        try:
            return verify(*args, **kwargs)
        except RuntimeError as error:
            if "DDP expects same model" not in str(error):
                raise
            return None

    parallel._verify_param_shape_across_processes = verify_and_believe


def _ranks_say_the_same(collectives: Any) -> None:
    """Objects gathered from other ranks are this rank's own: their bytes would come as zeros.

    Source: ``all_gather_object`` and ``broadcast_object_list`` in ``torch/distributed/distributed_c10d.py``.
    """
    distributed = sys.modules["torch.distributed"]

    def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
        object_list[:] = [obj] * collectives.get_world_size(group)

    def broadcast_object_list(object_list: list[Any], *_args: Any, **_kwargs: Any) -> None:
        pass

    for function in (all_gather_object, broadcast_object_list):
        for module in (collectives, distributed):
            setattr(module, function.__name__, function)
