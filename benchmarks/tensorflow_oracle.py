"""Run training steps in the GPU build of TensorFlow on stub CUDA libraries, and print what its allocator says.

    LD_LIBRARY_PATH=STUBS python benchmarks/tensorflow_oracle.py vgg16 32 sgd [growth]

Needs ``tensorflow`` (the GPU build) and stub CUDA libraries on ``LD_LIBRARY_PATH``: ``cudaMalloc`` hands out
addresses, kernels do nothing. Graph optimiser, executor and allocator are TensorFlow's own.
One case a process, since regions and constants of an earlier case would stay.
"""

from __future__ import annotations

import json
import os
import sys

os.environ.update(
    CUDA_VISIBLE_DEVICES="0",
    KERAS_BACKEND="tensorflow",
    TF_CUDNN_USE_AUTOTUNE="0",
    TF_ENABLE_ONEDNN_OPTS="0",
)

NUM_STEPS = 4


def main() -> None:
    """Run one case and print a JSON line."""
    reference, batch_size, optimizer, *flags = sys.argv[1:]
    if "growth" in flags:
        os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
    import tensorflow as tf

    from dnnmem_tune.frontends.tensorflow.workloads.references import load_build

    def memory() -> dict[str, int]:
        return tf.config.experimental.get_memory_info("GPU:0")

    params = {"optimizer": optimizer} if optimizer != "-" else {}
    model, specs = load_build(reference)(int(batch_size), **params)
    model.optimizer.build(model.trainable_variables)
    step = tf.function(lambda *batch: model.train_step(batch), autograph=False)
    with tf.device("GPU:0"):
        batch = [tf.zeros(spec.shape, spec.dtype) for spec in specs]
    before = memory()
    peaks = []
    result = None
    for number in range(NUM_STEPS):
        print(f"STEP {number}", file=sys.stderr, flush=True)  # among the lines of the allocator's log
        tf.config.experimental.reset_memory_stats("GPU:0")
        result = step(*batch)
        tf.nest.map_structure(lambda value: value.numpy(), result)
        peaks.append(memory()["peak"])
    print(f"STEP {NUM_STEPS}", file=sys.stderr, flush=True)
    row = {
        "workload": reference,
        "batch_size": int(batch_size),
        "optimizer": optimizer,
        "growth": "growth" in flags,
        "resident_bytes": before["current"],
        "peaks": peaks,
    }
    print("ROW " + json.dumps(row))


if __name__ == "__main__":
    main()
