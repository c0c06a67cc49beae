"""Watch a Hugging Face Trainer: attention goes wrong, and the monitor says so before the loss does.

python examples/monitor_a_trainer.py [FOLDER] [STEPS] [HEALTHY]

A small Llama learns the characters of the language reference that every CPython carries. After HEALTHY
steps the learning rate of its queries and keys doubles every 15 steps, as a faulty schedule might have it.
Then: joma monitor FOLDER/joma-monitor; joma report FOLDER.
"""

import sys
import tempfile
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import joma.hf
from joma.data.corpora import load_corpus
from joma.data.text import tokenize

LENGTH, BATCH, RATE = 48, 8, 3e-3


def main(folder: str = "", steps: str = "420", healthy: str = "300") -> None:
    """Train, watched, and print what the monitor said."""
    torch.manual_seed(0)
    text = tokenize(load_corpus("python-reference"), tokenizer="characters", vocabulary_size=96)
    starts = torch.randint(len(text.training) - LENGTH, (BATCH * int(steps),))
    windows = [torch.from_numpy(text.training[start : start + LENGTH]) for start in starts]
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=text.vocabulary_size,
            hidden_size=48,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=LENGTH,
        )
    )
    attention = [
        weight for name, weight in model.named_parameters() if ".q_proj" in name or ".k_proj" in name
    ]
    known = {id(weight) for weight in attention}
    rest = [weight for weight in model.parameters() if id(weight) not in known]
    optimizer = torch.optim.AdamW([{"params": attention}, {"params": rest}], lr=RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, [lambda step: 2.0 ** (max(step - int(healthy), 0) / 15), lambda step: 1.0]
    )
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(folder or temporary)
        monitor = joma.hf.TrainingMonitor(every=1, on_alarm=lambda message: None)
        Trainer(
            model,
            TrainingArguments(
                output_dir=str(out),
                max_steps=int(steps),
                per_device_train_batch_size=BATCH,
                logging_steps=50,
                save_strategy="no",
                report_to=[],
                use_cpu=True,
                disable_tqdm=True,
            ),
            train_dataset=[{"input_ids": window, "labels": window} for window in windows],
            optimizers=(optimizer, schedule),
            callbacks=[monitor],
        ).train()
    for message in monitor.messages:
        if message.kind != "state":
            print(f"{message.kind}: {message.sentence()}")
    states = [message for message in monitor.messages if message.kind == "state"]
    print(f"{len(states)} state messages" + (f", the first: {states[0].sentence()}" if states else ""))


if __name__ == "__main__":
    main(*sys.argv[1:])
