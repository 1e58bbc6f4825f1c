"""The network of docs/huggingface.md, as a module beside a config: a BERT with LoRA adapters."""

from __future__ import annotations

from typing import Any

from peft import LoraConfig, TaskType, get_peft_model
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

import clientwise as cw

ADAPTED = ["word_embeddings", "query", "value"]


@cw.parts.MODELS.register("bert_lora")
class BertLora(nn.Module):
    """A small BERT with random weights, of which LoRA adapters and the classifier are trained."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_outputs: int,
        *,
        words: int = 10_000,
        hidden: int = 64,
        layers: int = 2,
        rank: int = 4,
    ) -> None:
        super().__init__()
        config = BertConfig(
            vocab_size=words,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=max(1, hidden // 32),
            intermediate_size=2 * hidden,
            max_position_embeddings=input_shape[0],
            num_labels=num_outputs,
        )
        # With a network to download: BertForSequenceClassification.from_pretrained("...", num_labels=num_outputs)
        base = BertForSequenceClassification(config)
        adapters = LoraConfig(
            task_type=TaskType.SEQ_CLS, r=rank, lora_alpha=2 * rank, target_modules=ADAPTED
        )
        self.peft: Any = get_peft_model(base, adapters)

    def forward(self, words: Tensor) -> Tensor:
        """Logits [N, C] of word numbers [N, T]; 0 is padding."""
        logits: Tensor = self.peft(input_ids=words, attention_mask=(words != 0).long()).logits
        return logits
