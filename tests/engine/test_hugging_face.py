"""Networks of `transformers` with adapters of `peft`: trained, loaded again, and saved as `peft` saves them."""

from __future__ import annotations

import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import clientwise as cw
from clientwise.record.run import RunFolder

# Imported where they are used: they take seconds, and every test process collects this file.
pytestmark = pytest.mark.skipif(
    not all(map(find_spec, ("peft", "transformers"))),
    reason="peft and transformers are not installed: pip install 'clientwise[huggingface]'",
)

EXAMPLES = Path(__file__).parents[2] / "examples" / "huggingface"
WORDS = 40
LENGTH = 6
CONFIG: dict[str, Any] = {
    "name": "hugging face",
    "rounds": 3,
    "training": {"batch_size": 8, "optimizer": "adam", "learning_rate": 0.02},
    "methods": ["FedAvg"],
}


def texts() -> cw.Samples:
    random = torch.Generator().manual_seed(1)
    held = {}
    for name in "abc":
        labels = torch.randint(0, 2, (30,), generator=random)
        ids = torch.randint(2, WORDS, (30, LENGTH), generator=random)
        ids[:, 0] = labels
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        held[name] = (inputs, labels)
    return cw.Samples.from_clients(held)


def base() -> nn.Module:
    """The same weights every time, as `from_pretrained` gives them."""
    import transformers

    with torch.random.fork_rng():
        torch.manual_seed(3)
        config = transformers.BertConfig(
            vocab_size=WORDS, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
            max_position_embeddings=LENGTH, num_labels=2,
        )  # fmt: skip
        network: nn.Module = transformers.BertForSequenceClassification(config)
    return network


def adapted(**options: Any) -> Any:
    import peft

    adapters = peft.LoraConfig(
        task_type="SEQ_CLS", r=2, target_modules=["word_embeddings", "query"], **options
    )
    return peft.get_peft_model(base(), adapters)


def test_adapters_are_trained_and_loaded_by_peft(tmp_path: Path) -> None:
    import peft

    run = cw.run(CONFIG, tmp_path / "run", data=texts(), model=adapted)
    sent = [name for name, _ in RunFolder(run.folder).model_facts(1).tensors]
    assert all("lora_" in name or "classifier" in name for name in sent)
    assert len(sent) == 6
    assert run.frame("rounds")["residual"].notna().tolist() == [True] * 3

    trained: Any = run.module
    trained.save_pretrained(tmp_path / "adapter")
    loaded = peft.PeftModel.from_pretrained(base(), tmp_path / "adapter").eval()
    ids = torch.randint(2, WORDS, (4, LENGTH))
    with torch.no_grad():
        untrained = adapted().eval()(input_ids=ids).logits
        expected = trained(input_ids=ids).logits
        torch.testing.assert_close(loaded(input_ids=ids).logits, expected)
        assert not torch.allclose(untrained, expected, atol=1e-3)
        merged = loaded.merge_and_unload()
        torch.testing.assert_close(merged(input_ids=ids).logits, expected, rtol=1e-4, atol=1e-4)


def test_an_exported_model_is_where_another_run_begins(tmp_path: Path) -> None:
    run = cw.run(CONFIG, tmp_path / "run", data=texts(), model=adapted)
    path = run.export("FedAvg", 1, tmp_path)
    config = CONFIG | {"rounds": 1, "initial_model": str(path)}
    config["training"] = {"learning_rate": 1e-9}
    more = cw.run(config, tmp_path / "more", data=texts(), model=adapted)
    before: Any = run.module
    after: Any = more.module
    ids = torch.randint(2, WORDS, (4, LENGTH))
    with torch.no_grad():
        torch.testing.assert_close(
            after(input_ids=ids).logits, before(input_ids=ids).logits, rtol=1e-4, atol=1e-5
        )


def test_dropout_of_adapters_is_reproducible(tmp_path: Path) -> None:
    def dropping() -> Any:
        return adapted(lora_dropout=0.3)

    one, other = (
        RunFolder(cw.run(CONFIG, tmp_path / name, data=texts(), model=dropping).folder).trained(
            "FedAvg", 1
        )
        for name in ("one", "other")
    )
    assert all(torch.equal(one[1][name], other[1][name]) for name in one[1])


def test_the_example_is_a_run(tmp_path: Path) -> None:
    """The config of examples/huggingface/lora.toml with other, small data."""
    config = tomllib.loads((EXAMPLES / "lora.toml").read_text(encoding="utf-8"))
    config |= {"rounds": 1, "plugin_dir": str(EXAMPLES)}
    config["model"] |= {"words": WORDS, "hidden": 16, "layers": 1}
    for key in ("data", "partition", "server_set"):
        config.pop(key)
    random = torch.Generator().manual_seed(1)
    held = [
        (torch.randint(0, WORDS, (20, LENGTH), generator=random), torch.arange(20) % 2)
        for _ in range(3)
    ]
    run = cw.Run(cw.run(config, tmp_path / "run", data=cw.Samples.from_clients(held)))
    assert run.finished
    assert run.methods == ["FedAvg", "mean of factors"]
    trained: Any = run.model("FedAvg")
    trained.peft.save_pretrained(tmp_path / "adapter")
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()
