"""Lightning: a small translation model, with a scheduler and a progress bar.

dnnmem dryrun --gpu T4 -- python examples/dryrun_lightning.py --batch-size 64
"""

import argparse

import lightning
import torch
from torch import nn


class Translator(lightning.LightningModule):
    """An encoder and a decoder over a shared vocabulary."""

    def __init__(self, vocabulary=16_000, width=512):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.transformer = nn.Transformer(width, 8, 4, 4, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def training_step(self, batch, _index):
        """Predict each token of the target."""
        source, target = batch
        mask = nn.Transformer.generate_square_subsequent_mask(target.size(1), device=self.device)
        hidden = self.transformer(self.embedding(source), self.embedding(target), tgt_mask=mask)
        loss = nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), target.flatten())
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        """AdamW with a cosine schedule."""
        optimizer = torch.optim.AdamW(self.parameters())
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    arguments = parser.parse_args()

    tokens = torch.utils.data.TensorDataset(*torch.ones(2, 20_000, 64, dtype=torch.long))
    trainer = lightning.Trainer(
        max_steps=1000,
        accelerator="gpu",
        devices=1,
        precision="16-mixed",
        logger=False,
        enable_checkpointing=False,
    )
    trainer.fit(Translator(), torch.utils.data.DataLoader(tokens, batch_size=arguments.batch_size))


if __name__ == "__main__":
    main()
