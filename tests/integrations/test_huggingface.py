"""Losses and measures in transformers' own Trainer, with a tiny random BERT."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    EvalPrediction,
    Trainer,
    TrainingArguments,
)
from variants import BATCH_LEVEL, PLAIN

from calibrant import functional, losses
from calibrant.integrations.huggingface import AdaptCallback, compute_metrics, loss_function

CLASSES, LENGTH = 3, 6


def samples(size: int, seed: int, *, tokens: bool = False) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(1, 20, (size, LENGTH), generator=generator)
    labels = torch.where(torch.rand(size, LENGTH, generator=generator) < 0.4, -100, words % CLASSES)
    labels = labels if tokens else words[:, 0] % CLASSES
    return [{"input_ids": x, "labels": y} for x, y in zip(words, labels, strict=True)]


def bert(*, tokens: bool = False) -> nn.Module:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 20, "hidden_size": 8, "intermediate_size": 8, "max_position_embeddings": LENGTH}
    sizes |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_labels": CLASSES}
    config = BertConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return (BertForTokenClassification if tokens else BertForSequenceClassification)(config)


def trainer(folder: Path, loss: nn.Module, *callbacks: Any, tokens: bool = False, **given: Any) -> Trainer:
    own = {key: given.pop(key) for key in ("eval_dataset", "compute_metrics") if key in given}
    options: dict[str, Any] = {"per_device_train_batch_size": 8, "per_device_eval_batch_size": 5, "learning_rate": 1e-2}
    options |= {"report_to": [], "use_cpu": True, "disable_tqdm": True, "save_strategy": "no", "max_grad_norm": 0.0}
    own = {"train_dataset": samples(16, 1, tokens=tokens), "eval_dataset": samples(12, 2, tokens=tokens), **own}
    arguments = TrainingArguments(output_dir=str(folder), **{**options, **given})
    model = bert(tokens=tokens)
    return Trainer(model, arguments, compute_loss_func=loss_function(loss), callbacks=list(callbacks), **own)


@pytest.mark.parametrize("tokens", [False, True], ids=["sequences", "tokens"])
def test_accumulated_gradients_are_those_of_one_batch(tmp_path: Path, tokens: bool) -> None:
    found = []
    for batch, steps in ((8, 1), (2, 4)):
        options = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": steps, "max_steps": 1}
        run = trainer(tmp_path, losses.MbLS(margin=0.01), tokens=tokens, **options)
        gradients: dict[str, Tensor] = {}
        for name, weight in run.model.named_parameters():
            weight.register_post_accumulate_grad_hook(lambda w, name=name, own=gradients: own.update({name: w.grad.clone()}))
        run.train()
        found.append(gradients)
    whole, accumulated = found
    assert max(float(gradient.abs().max()) for gradient in whole.values()) > 1e-2
    for name, gradient in whole.items():
        torch.testing.assert_close(accumulated[name], gradient, rtol=0, atol=1e-6)


@pytest.mark.parametrize("key", [key for key in PLAIN if key not in BATCH_LEVEL])
def test_steps_of_any_size_add_up(key: str) -> None:
    """Except for losses that compare the samples of a batch with each other."""
    compute = loss_function(losses.create(key, num_classes=CLASSES))
    logits, labels = 3 * torch.randn(4, LENGTH, CLASSES), torch.randint(CLASSES, (4, LENGTH))
    labels[torch.rand(4, LENGTH) < 0.4] = -100
    count = (labels != -100).sum()
    parts = [
        compute({"logits": z}, y, num_items_in_batch=count) for z, y in zip(logits[:, None], labels[:, None], strict=True)
    ]
    torch.testing.assert_close(torch.stack(parts).sum(), compute((logits,), labels), rtol=1e-6, atol=1e-6)


def test_evaluation_reports_the_loss_and_the_measures_of_all_tokens(tmp_path: Path) -> None:
    loss = losses.Focal(gamma=2.0)
    for batches in (False, True):
        options = {"batch_eval_metrics": batches, "compute_metrics": compute_metrics(metrics=["accuracy", "ece", "nll"])}
        run = trainer(tmp_path, loss, tokens=True, **options)
        found = run.evaluate()
        words, labels = (torch.stack([sample[key] for sample in run.eval_dataset]) for key in ("input_ids", "labels"))
        with torch.no_grad():
            logits = run.model(words).logits[labels != -100]
        labels = labels[labels != -100]
        assert found["eval_ece"] == pytest.approx(float(functional.ece(logits, labels)), abs=1e-6)
        assert found["eval_nll"] == pytest.approx(float(nn.functional.cross_entropy(logits, labels)), abs=1e-5)
        assert found["eval_accuracy"] == pytest.approx(float((logits.argmax(1) == labels).double().mean()))


def test_the_loss_adapts_once_per_evaluation(tmp_path: Path) -> None:
    loss, by_hand = (losses.CALSALM(num_classes=CLASSES, margin=0.01) for _ in range(2))
    measures = compute_metrics(loss, metrics=["ece"])
    options = {"learning_rate": 0.0, "num_train_epochs": 2, "eval_strategy": "epoch", "compute_metrics": measures}
    run = trainer(tmp_path, loss, AdaptCallback(loss), tokens=True, **options)
    run.train()
    words, labels = (torch.stack([sample[key] for sample in run.eval_dataset]) for key in ("input_ids", "labels"))
    with torch.no_grad():
        logits = run.model(words).logits
    for _ in range(2):
        by_hand.observe(logits.flatten(0, 1), labels.flatten())
        by_hand.adapt()
    assert int(loss.epoch) == 2
    assert loss.multipliers.std() > 0
    torch.testing.assert_close(loss.multipliers, by_hand.multipliers)
    assert "eval_multipliers_mean" in run.state.log_history[-2]
    run.evaluate(samples(9, 3, tokens=True))
    run.predict(samples(9, 3, tokens=True))
    assert int(loss.epoch) == 2  # the test set teaches it nothing
    with pytest.raises(RuntimeError, match="nothing to learn from"):
        loss.adapt()


def test_one_of_several_evaluation_sets_teaches(tmp_path: Path) -> None:
    found = []
    validation = samples(12, 2)
    for sets in ({"a": samples(7, 5), "b": validation}, {"b": validation}):
        loss = losses.AdaFocal(num_bins=3)
        options = {"max_steps": 1, "eval_strategy": "epoch", "eval_dataset": sets}
        trainer(tmp_path, loss, AdaptCallback(loss, metric_key_prefix="eval_b"), **options).train()
        found.append(loss)
    assert int(found[0].epoch) == 1
    torch.testing.assert_close(found[0].gammas, found[1].gammas)


def test_checkpoints_hold_what_was_learned(tmp_path: Path) -> None:
    options = {"num_train_epochs": 3, "eval_strategy": "epoch", "save_strategy": "epoch"}

    def start() -> tuple[Trainer, losses.AdaFocal]:
        loss = losses.AdaFocal(num_bins=3)
        return trainer(tmp_path, loss, AdaptCallback(loss), **options), loss

    run, whole = start()
    run.train()
    checkpoint = tmp_path / "checkpoint-2"  # after the first epoch
    saved = json.loads((checkpoint / "trainer_state.json").read_text())["stateful_callbacks"]["calibrant"]
    assert saved["epoch"] == 1
    assert np.std(saved["gammas"]) > 0
    again, resumed = start()
    again.train(resume_from_checkpoint=str(checkpoint))
    assert int(resumed.epoch) == 3
    torch.testing.assert_close(resumed.gammas, whole.gammas)
    for name, weight in run.model.state_dict().items():
        torch.testing.assert_close(again.model.state_dict()[name], weight)


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(
        TypeError, match=r"AdaptCallback is for losses that learn .* which MbLS is not: leave the callback out"
    ):
        AdaptCallback(losses.MbLS())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="loss must be a loss, such as .*, got str"):
        loss_function("mbls")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="with the Trainer, reduction must be 'mean', got 'sum'"):
        loss_function(nn.CrossEntropyLoss(reduction="sum"))
    with pytest.raises(ValueError, match="with the Trainer, ignore_index must be -100, got 255"):
        loss_function(losses.Focal(ignore_index=255))
    with pytest.raises(ValueError, match="there are no labels: name the column of the data set labels"):
        loss_function(losses.Focal())({"logits": torch.zeros(2, 3)}, None)
    with pytest.raises(ValueError, match=r"labels must have shape \(2, 6\), one for each token"):
        loss_function(losses.Focal())({"logits": torch.zeros(2, 6, 3)}, torch.zeros(2, 5, dtype=torch.long))
    probs = torch.randn(9, 3).softmax(1).numpy()
    with pytest.raises(ValueError, match="logits are probabilities"):
        compute_metrics()(EvalPrediction(predictions=probs, label_ids=np.zeros(9, dtype=int)))
    other = AdaptCallback(losses.AdaFocal())  # not the loss that the Trainer has
    run = trainer(tmp_path, losses.AdaFocal(), other, max_steps=1, eval_strategy="epoch")
    with pytest.raises(RuntimeError, match="give the Trainer compute_loss_func=loss_function"):
        run.train()
