"""The list of the course's models: each a configuration file in data/models/, and what its table trains on.

Apart from `models`, so that the command line can name them without importing torch.
"""

from dataclasses import dataclass

MiB = 2**20


@dataclass(frozen=True)
class Model:
    """A model: its configuration file, its name in records, and what `trainlean measure` trains it on.

    `samples` of `tokens` tokens make one epoch; `budget` (bytes) is what the largest batch must fit into, CUDA context
    included; a row may take `limit` seconds; its epoch is timed `repeats` times.
    """

    file: str
    model: str
    samples: int
    tokens: int
    budget: int
    limit: float
    repeats: int = 3


MODELS = {  # BERT-large as it was published: on a V100 of 16 GB
    "bert-large": Model("bert-large", "bert-large-uncased", 512, 512, 16160 * MiB, 1800),
    "small": Model("bert-small", "small BERT", 32, 128, 200 * MiB, 90),
}
# Every configuration by the key that `model_config` takes, with its file: decoders are predicted, and not in the table.
CONFIGURATIONS = {key: model.file for key, model in MODELS.items()} | {
    "small-decoder": "decoder-small",
    "llama-1b": "llama-1b",
    "qwen-7b": "qwen-7b",
}
