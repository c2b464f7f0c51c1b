"""Hugging Face Trainer: GPT-2 from a configuration, nothing downloaded.

dnnmem dryrun --gpu A100-40GB -- python examples/dryrun_trainer.py --per_device_train_batch_size 4
"""

import argparse
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class RandomTokens(torch.utils.data.Dataset):
    """Stands for a tokenized text."""

    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        tokens = torch.full((512,), index % 100)
        return {"input_ids": tokens, "labels": tokens}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--per_device_train_batch_size", type=int, default=4)
    parser.add_argument("--gradient_checkpointing", action="store_true")
    parser.add_argument("--bf16", action="store_true")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        training = TrainingArguments(
            folder,
            max_steps=100,
            per_device_train_batch_size=arguments.per_device_train_batch_size,
            gradient_checkpointing=arguments.gradient_checkpointing,
            bf16=arguments.bf16,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
        )
        Trainer(model=GPT2LMHeadModel(GPT2Config()), args=training, train_dataset=RandomTokens()).train()


if __name__ == "__main__":
    main()
