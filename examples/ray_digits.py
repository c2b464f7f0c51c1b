"""Ray Tune with ASHA: nothing too large is launched, and trials share the GPU by their estimates.

Run it: ``python examples/ray_digits.py``. It needs no GPU and under a minute; to Ray's scheduler the card is
a number. ``pip install "dnnmem-tune[torch,ray]" scikit-learn``
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from pathlib import Path
from typing import Any

import digits
import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler

from dnnmem_tune import MemoryGuard
from dnnmem_tune.integrations.ray import MemoryFilteredGenerator, gpu_fraction, memory_filter

SPACE = {
    "batch_size": tune.choice([32, 128, 512, 65536]),
    "width": tune.choice([64, 256, 512, 8192]),
    "depth": tune.randint(1, 7),
    "optimizer": tune.choice(["adam", "sgd"]),
    "lr": tune.loguniform(1e-4, 1e-1),
}


def train(config: dict[str, Any]) -> None:
    """Report the error after each epoch, so that ASHA can stop what does not learn."""
    for error in digits.train(**config):
        tune.report({"error": error})


def main(launched: int, storage: str) -> tune.ResultGrid:
    """Launch so many trials, and print what became of each."""
    with MemoryGuard(digits.build, gpu=digits.GPU) as guard:
        shares = gpu_fraction(guard, cpus=1)
        search = memory_filter(None, guard)
        assert isinstance(search, MemoryFilteredGenerator)
        results = tune.Tuner(
            tune.with_resources(train, shares),
            param_space=SPACE,
            tune_config=tune.TuneConfig(
                metric="error",
                mode="min",
                search_alg=search,
                scheduler=ASHAScheduler(max_t=2, grace_period=1),
                num_samples=launched,
                reuse_actors=True,
            ),
            run_config=tune.RunConfig(verbose=0, storage_path=storage),
        ).fit()
        for result in results:
            assert result.config is not None
            assert result.metrics is not None
            share, epochs = shares.share(result.config), result.metrics["training_iteration"]
            print(
                f"launched {share:4.2f} GPU, {epochs} epochs, error {result.metrics['error']:.3f} {result.config}"
            )
        for veto in search.vetoed:
            print(f"vetoed   {veto.verdict.reason} {veto.config}")
        print(f"\n{len(results)} launched, {len(search.vetoed)} vetoed, {guard.counts.num_traces} traces")
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launched", type=int, default=8, help="trials to launch; vetoed ones do not count")
    arguments = parser.parse_args()
    ray.init(
        num_cpus=2,
        num_gpus=1,
        include_dashboard=False,
        logging_level=logging.ERROR,
        runtime_env={"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}},
    )
    with tempfile.TemporaryDirectory() as folder:
        main(arguments.launched, folder)
    ray.shutdown()
