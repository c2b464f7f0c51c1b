"""How long a text can a language model be fine-tuned on? Only its configuration is needed, not its weights.

    python examples/estimate_huggingface.py configs/workloads/gpt2-medium.json --gpu A10G

With adapters on a large model, of which all but two projections stay frozen, add
``--set precision=bf16-pure checkpointing=true trainable='q_proj|v_proj'``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import dnnmem_tune
from dnnmem_tune.units import format_bytes

CONFIGURATIONS = Path(__file__).parent.parent / "configs" / "workloads"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", default=str(CONFIGURATIONS / "gpt2-medium.json"))
    parser.add_argument("--gpu", default="A10G", help="the card that the job will run on")
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 256, 512, 1024], metavar="TOKENS")
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="NAME=VALUE", help="hyperparameters of the workload"
    )
    parser.add_argument("--smoke", action="store_true", help="small enough for a test")
    options = parser.parse_args()
    params = dict(_hyperparameter(text) for text in options.set)
    lengths = options.lengths
    if options.smoke:
        params, lengths = {"n_layer": 1, "n_embd": 64}, [16]

    with dnnmem_tune.EstimationSession(f"hf:{options.config}") as session:
        for length in lengths:
            estimate = session.estimate(options.batch_size, options.gpu, {**params, "seq_len": length})
            answer = {True: "fits", False: "does not fit", None: "may or may not fit"}[estimate.fits]
            print(f"{length:>6} tokens: {format_bytes(estimate.peak_device_bytes):>10}, {answer} on {options.gpu}")


def _hyperparameter(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    words = {"true": True, "false": False, "none": None}
    if value.lower() in words:
        return name, words[value.lower()]
    return name, int(value) if value.isdigit() else value


if __name__ == "__main__":
    main()
