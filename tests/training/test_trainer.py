"""What the lessons say of the Trainer and no cell of theirs shows."""

import pytest

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_window_is_counted_whole_and_an_evaluated_batch_alone(tmp_path):
    """5_decoders/3_trainer says which number `compute_loss` is handed."""
    import torch
    from transformers import Trainer, TrainingArguments

    from trainlean import small_decoder

    handed = []

    class Noting(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            handed.append((model.training, int(num_items_in_batch)))
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    rows = []
    for targets in (3, 4, 5, 6):
        ids = torch.arange(8)
        rows.append({"input_ids": ids, "labels": ids.masked_fill(ids > targets, -100)})
    arguments = TrainingArguments(
        tmp_path,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    model = small_decoder(num_hidden_layers=1)
    trainer = Noting(model, arguments, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    trainer.evaluate()
    assert handed == [(True, 18), (True, 18), (False, 7), (False, 11)]
