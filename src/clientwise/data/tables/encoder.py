"""The inputs of a network from the rows of a table, as a module that a trained model can carry."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .encoding import Encoding


class Encoder(nn.Module):
    """Turns rows of a table [N, columns] into inputs [N, F]."""

    source: Tensor  # [F] the column of every input
    category: Tensor  # [F] the category that it stands for; -1 for numbers, -2 for missing values
    fill: Tensor
    mean: Tensor
    deviation: Tensor
    seen: Tensor  # [F]

    def __init__(self, encoding: Encoding) -> None:
        super().__init__()
        source: list[int] = []
        category: list[int] = []
        seen: list[bool] = []
        for index, column in enumerate(encoding.columns):
            codes = list(range(len(column.categories))) or [-1]
            if column.marks_missing:
                codes.append(-2)
            unseen = set(column.unseen)
            source += [index] * len(codes)
            category += codes
            seen += [position not in unseen for position in range(len(codes))]
        self.register_buffer("source", torch.tensor(source))
        self.register_buffer("category", torch.tensor(category, dtype=torch.float64))
        self.register_buffer("seen", torch.tensor(seen))
        for name in ("fill", "mean", "deviation"):
            values = [getattr(column, name) for column in encoding.columns]
            self.register_buffer(name, torch.tensor(values, dtype=torch.float64)[self.source])

    def forward(self, values: Tensor) -> Tensor:
        """Inputs [N, F], float32, of values [N, columns] as `InputColumn` describes them."""
        values = values.double()[:, self.source]
        missing = values.isnan()
        numbers = (torch.where(missing, self.fill, values) - self.mean) / self.deviation
        is_category = (values == self.category).double()
        inputs = torch.where(self.category == -1, numbers, is_category)
        inputs = torch.where(self.category == -2, missing.double(), inputs)
        return torch.where(self.seen, inputs, 0.0).float()
