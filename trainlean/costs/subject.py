"""What is trained: a transformers configuration for a task, or anybody's module with a batch and a loss."""

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers
from torch import nn

from trainlean.costs.batches import map_tensors, tensors_of_batch
from trainlean.setup import TrainingSetup

# Names of tasks, and transformers' class for each. Of a configuration that names no class the first that it has is meant.
TASKS = {
    "sequence-classification": "AutoModelForSequenceClassification",
    "image-classification": "AutoModelForImageClassification",
    "audio-classification": "AutoModelForAudioClassification",
    "video-classification": "AutoModelForVideoClassification",
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
    "speech-seq2seq": "AutoModelForSpeechSeq2Seq",
    "ctc": "AutoModelForCTC",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
    "multiple-choice": "AutoModelForMultipleChoice",
    "masked-image-modeling": "AutoModelForMaskedImageModeling",
    "semantic-segmentation": "AutoModelForSemanticSegmentation",
}
USUAL_LENGTH = 512  # tokens, where a setup does not say
USUAL_SAMPLES = 16000  # of sound, a second of it
# Parts that a configuration has beside its text, and the inputs of a forward pass that are theirs.
FURTHER = {
    "vision_config": ("pixel_values", "pixel_values_videos", "pixel_values_images", "images"),
    "audio_config": ("input_features", "input_values", "audio_values", "input_audio_embeds"),
}
CHOICES = 4  # of a multiple choice


@dataclass(frozen=True)
class Subject:
    """A model to be trained.

    - `make(setup)`: the module; one of real tensors is not to be changed
    - `batch(setup)`: a micro-batch of real tensors, as the model or the loss takes it
    - `loss(model, batch)`: a tensor with one number
    - `name`: for records; `depth`: its layers where the configuration says how many
    - `identity`: what tells this model from another, as text; "" where nothing does
    - `usual_length`: the sequence length where a setup says none; None where samples have no length to choose
    """

    make: Callable[[TrainingSetup], nn.Module]
    batch: Callable[[TrainingSetup], Any]
    loss: Callable[[nn.Module, Any], torch.Tensor]
    name: str
    depth: int | None = None
    identity: str = ""
    usual_length: int | None = None

    def ready(self, setup: TrainingSetup) -> TrainingSetup:
        """The setup with a sequence length, where the model has one."""
        return replace(setup, sequence_length=setup.sequence_length or self.usual_length)


def subject_of(model, task=None, batch=None, loss=None) -> Subject:
    """The subject that `predict_run`'s arguments describe; a Subject is its own. ValueError: what they lack, in a sentence."""
    if isinstance(model, Subject):
        return model
    if loss is not None and not callable(loss):
        raise ValueError(
            f"The loss is a function of model and batch that returns one number, not {loss!r:.80}."
        )
    if str(getattr(loss, "__module__", "")).startswith("torch.nn"):
        name = f"{type(loss).__name__}()" if isinstance(loss, nn.Module) else loss.__name__
        raise ValueError(
            f"The loss is a function of model and batch, and {name} one of outputs and labels: give one that calls it, such as lambda model, batch: {name}(model(batch[0]), batch[1])."
        )
    if isinstance(model, transformers.PreTrainedConfig):
        return _of_config(model, task, batch, loss)
    makes = isinstance(model, type) and issubclass(model, nn.Module)
    if not makes and (isinstance(model, type) or not callable(model)):
        kind = model.__name__ if isinstance(model, type) else type(model).__name__
        raise ValueError(
            f"The model is a transformers configuration, a torch.nn.Module or a function that makes one, not {kind}."
        )
    if task is not None:
        raise ValueError("A task is chosen for a configuration only; a module is what it is.")
    return _of_module(model, batch, loss)


# A configuration


def _of_config(config, task, batch, loss):
    kind = _class_of(config, task, batch is not None)
    depths = [config.num_hidden_layers] if hasattr(config, "num_hidden_layers") else []
    maker = _Batches(config, kind)
    return Subject(
        make=lambda setup: _made(config, kind, setup),
        batch=_resized(batch) if batch is not None else maker.batch,
        loss=loss or _own_loss,
        name=config.name_or_path or config.model_type,
        depth=depths[0] if depths else None,
        identity=""
        if batch is not None or loss is not None
        else f"{kind.__name__} {config.to_json_string(use_diff=False)}",
        usual_length=None if batch is not None else maker.usual_length,
    )


def _made(config, kind, setup):
    _refuse_what_is_drawn(config)
    config = copy.deepcopy(config)
    for part in (config, *_parts(config)):
        if hasattr(part, "use_cache"):
            # Nobody reads it in training: the Trainer switches it off, and so does checkpointing. Left on, each layer
            # still copies keys and values into it, which are then kept.
            part.use_cache = False
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = getattr(config, "pad_token_id", None) or 0
    if kind.__name__.endswith("SequenceClassification") and config.problem_type is None:
        # Else the first loss writes it there.
        config.problem_type = (
            "regression" if config.num_labels == 1 else "single_label_classification"
        )
    try:
        return kind._from_config(config, attn_implementation=setup.attention).train()
    except (ValueError, ImportError) as error:
        other = setup.attention != "eager" and "attention implementation" in str(error)
        way_out = ' Set attention="eager".' if other else ""
        raise ValueError(
            f"{kind.__name__} cannot be made: {_first_sentence(error)}{way_out}"
        ) from None


def _parts(config):
    return [
        value for value in vars(config).values() if isinstance(value, transformers.PreTrainedConfig)
    ]


def _refuse_what_is_drawn(config):
    for part in (config, *_parts(config)):
        for name, value in vars(part).items():
            if name.endswith("layerdrop") and value:
                raise ValueError(
                    f"{type(part).__name__} leaves layers out at random ({name}={value}), so no two steps need the same: set {name}=0.0."
                )


def _class_of(config, task, has_batch=False):
    """transformers' class of this configuration for a task: a name of TASKS, an Auto class, a model's class or the name of one.

    Where a batch is given it may be any, else one that takes labels, or of a task whose batch is known.
    """
    if task is None:
        named = [getattr(transformers, name, None) for name in config.architectures or []]
        auto = [getattr(transformers, name) for name in TASKS.values()]
        for kind in named + auto:
            if kind is not None and (found := _found(config, kind)):
                return found
        raise ValueError(
            f"{type(config).__name__} is of no task that a batch is known for ({', '.join(TASKS)}): give the module, a batch and a loss instead."
        )
    name = TASKS.get(str(task).replace("_", "-").lower(), task)
    kind = getattr(transformers, name, None) if isinstance(name, str) else name
    if not isinstance(kind, type):
        raise ValueError(
            f"The task is one of {', '.join(TASKS)} or a class of transformers, not {task!r}."
        )
    if found := _of_kind(config, kind):
        if has_batch or _takes_labels(found) or kind.__name__ in TASKS.values():
            return found
        raise ValueError(
            f"{found.__name__} takes no labels, so no batch is known for it: give batch=..., and loss=... where its forward pass gives none."
        )
    raise ValueError(
        f"{type(config).__name__} has no {kind.__name__}; it has {', '.join(_tasks(config)) or 'none of ' + ', '.join(TASKS)}."
    )


def _tasks(config):
    return [task for task, name in TASKS.items() if _found(config, getattr(transformers, name))]


def _found(config, kind):
    found = _of_kind(config, kind)
    mapped = hasattr(kind, "_model_mapping")
    return found if found and (mapped or _takes_labels(found)) else None


def _takes_labels(kind):
    return "labels" in inspect.signature(kind.forward).parameters


def _of_kind(config, kind):
    """The class that this one is for the configuration, None where there is none."""
    mapping = getattr(kind, "_model_mapping", None)
    if mapping is not None:
        if type(config) not in mapping:
            return None
        found = mapping[type(config)]
        return found[0] if isinstance(found, (tuple, list)) else found
    if issubclass(kind, transformers.PreTrainedModel):
        return kind if kind.config_class is type(config) else None
    return None


class _Batches:
    """Micro-batches for a model of transformers: what its forward takes, in the shapes that its configuration says."""

    def __init__(self, config, kind):
        self.config, self.kind = config, kind
        self.arguments = inspect.signature(kind.forward).parameters
        self.text = getattr(config, "text_config", None) or config
        self.main = next(
            (
                name
                for name in (kind.main_input_name, "input_ids", "pixel_values", "input_values")
                if name in self.arguments
            ),
            kind.main_input_name,
        )
        self.usual_length: int | None = USUAL_LENGTH
        if self.main == "pixel_values" or "pixel_values" in self.arguments and self._is("Image"):
            self.main, self.usual_length = "pixel_values", None
        elif self.main == "input_values" and not self._spectrogram():
            self.usual_length = USUAL_SAMPLES
        elif self.main in ("input_values", "input_features") and "Seq2Seq" not in str(kind):
            self.usual_length = None if self._spectrogram() else USUAL_LENGTH

    def _is(self, word):
        return word in self.kind.__name__

    def _spectrogram(self):
        return getattr(self.config, "num_mel_bins", None)

    def batch(self, setup):
        size, length = setup.micro_batch, setup.sequence_length
        if length is not None:
            self._check_length(length)
        self._refuse_what_else_it_takes()
        batch = {self.main: self._input(size, length)}
        if self.main == "input_ids" and "attention_mask" in self.arguments:
            # Without padding, the fused attention's batch has no mask: it would be left out.
            if setup.padded or setup.attention == "eager":
                batch["attention_mask"] = torch.ones(size, length, dtype=torch.int64)
            if setup.padded:
                batch["attention_mask"][0, -1:] = 0
        if self._is("ForMultipleChoice"):
            batch = {
                name: value[:, None].expand(-1, CHOICES, -1).clone()
                for name, value in batch.items()
            }
        if self._is("ForMaskedImageModeling"):
            side = _pair(self.config.image_size)[0] // _pair(self.config.patch_size)[0]
            batch["bool_masked_pos"] = torch.zeros(size, side**2, dtype=torch.bool)
            batch["bool_masked_pos"][:, ::2] = True
            return batch
        return batch | self._labels(size, length)

    def _check_length(self, length):
        positions = getattr(self.text, "max_position_embeddings", None)
        if self.main == "input_ids" and isinstance(positions, int) and 0 < positions < length:
            raise ValueError(
                f"The model has {positions} positions: sequence_length cannot be {length}."
            )

    def _refuse_what_else_it_takes(self):
        """A model of text and of images or sound is not what trains on text alone: the other part would get no gradient."""
        for part, names in FURTHER.items():
            taken = [name for name in names if name in self.arguments]
            if getattr(self.config, part, None) and taken and self.main not in names:
                raise ValueError(_no_batch(self.kind, f"{self.main} and {taken[0]}"))

    def _input(self, size, length):
        config = self.config
        if self.main == "input_ids":
            return self._tokens(size, length)
        if self.main == "pixel_values":
            vision = getattr(config, "vision_config", None) or config
            sides = _pair(getattr(vision, "image_size", None) or 224)
            shape = (getattr(vision, "num_channels", 3), *sides)
            if "video" in self.kind.__name__.lower() and hasattr(vision, "num_frames"):
                shape = (vision.num_frames, *shape)
            return torch.rand(size, *shape)
        if self.main == "input_values" and not self._spectrogram():
            return torch.rand(size, length)
        if self.main == "input_values":
            return torch.rand(size, getattr(config, "max_length", 1024), config.num_mel_bins)
        if self.main == "input_features" and hasattr(config, "max_source_positions"):
            if bins := self._spectrogram():
                return torch.rand(size, bins, 2 * config.max_source_positions)
            return torch.rand(size, length, config.input_feat_per_channel)
        raise ValueError(_no_batch(self.kind, self.main))

    def _tokens(self, size, length):
        """Token numbers that are drawn, the special ones only where they have a meaning: at the end."""
        vocabulary = getattr(self.text, "vocab_size", None)
        if vocabulary is None:
            raise ValueError(
                f"The configuration names no vocab_size, so no batch of tokens is known for {self.kind.__name__}: give batch=..., and loss=... where it needs one."
            )
        tokens = torch.randint(min(10, vocabulary - 1), vocabulary, (size, length))
        special = [getattr(self.text, f"{name}_token_id", None) for name in ("pad", "bos", "eos")]
        ends = special[2][0] if isinstance(special[2], list) else special[2]
        for number in {*special[:2], ends} - {None}:
            if isinstance(number, int):
                tokens[tokens == number] = min(10, vocabulary - 1)
        if ends is not None and 0 <= ends < vocabulary:
            tokens[:, -1] = ends
        return tokens

    def _labels(self, size, length):
        config, few = self.config, max(1, (length or 8) // 8)
        if self._is("QuestionAnswering"):
            return {
                name: torch.zeros(size, dtype=torch.int64)
                for name in ("start_positions", "end_positions")
            }
        if self._is("ForTokenClassification"):
            return {"labels": torch.randint(config.num_labels, (size, length))}
        if self._is("ForMultipleChoice"):
            return {"labels": torch.zeros(size, dtype=torch.int64)}
        if self._is("ForCTC"):
            return {"labels": torch.randint(1, config.vocab_size, (size, min(few, 10)))}
        if self._is("ForSemanticSegmentation"):
            height, width = _pair(getattr(config, "image_size", None) or 224)
            return {"labels": torch.randint(config.num_labels, (size, height, width))}
        if self._is("Classification"):
            if config.num_labels == 1:
                return {"labels": torch.rand(size)}
            return {"labels": torch.randint(config.num_labels, (size,))}
        if self.main == "input_features" and "Seq2Seq" not in self.kind.__name__:
            length = min(length or 64, getattr(config, "max_target_positions", 448))
        return {"labels": self._tokens(size, length or 64)}


def _no_batch(kind, inputs):
    return f"{kind.__name__} takes {inputs}, which no batch is known for: give batch=..., and loss=... where it needs one."


def _pair(value):
    return tuple(value) if isinstance(value, (list, tuple)) else (value, value)


# A module


def _of_module(model, batch, loss):
    if batch is None:
        raise ValueError(
            "A module is predicted with a sample batch: give batch=..., and loss=... where its forward pass gives none."
        )
    name = type(model).__name__ if isinstance(model, nn.Module) else model.__name__

    def make(setup):
        module = model if isinstance(model, nn.Module) else model()
        if not isinstance(module, nn.Module):
            raise ValueError(
                f"{name}() makes the model, a torch.nn.Module, not {type(module).__name__}."
            )
        return module

    return Subject(make=make, batch=_resized(batch), loss=loss or _own_loss, name=name)


def _resized(batch):
    """Micro-batches of any size from a sample batch, whose tensors are repeated along their first dimension; or a function's.

    The function takes the micro-batch and the sequence length. Each copy of the samples is turned along its longest
    dimension by one place more: with samples that are the same, a loss that compares them could not be told from one that
    does not. (Not along a short one: the corners of a box have an order.)
    """
    if callable(batch) and not tensors_of_batch(batch):
        return lambda setup: batch(setup.micro_batch, setup.sequence_length)
    sizes = {tensor.shape[0] for tensor in tensors_of_batch(batch) if tensor.dim()}
    if len(sizes) != 1:
        raise ValueError(
            "The tensors of a sample batch have the samples as their first dimension; these have "
            f"{', '.join(map(str, sorted(sizes))) or 'no'} samples. Give a function of micro-batch and sequence length that makes one."
        )

    def resize(tensor, size):
        if not tensor.dim():
            return tensor
        if size <= len(tensor):
            return tensor[:size].clone()
        if tensor.dim() > 1:
            longest = 1 + max(range(tensor.dim() - 1), key=lambda i: tensor.shape[1 + i])
            copies = range(-(-size // len(tensor)))
            return torch.cat([tensor.roll(number, longest) for number in copies])[:size].clone()
        return tensor[torch.arange(size) % len(tensor)]

    def make(setup):
        if setup.sequence_length is not None:
            raise ValueError(
                "The length is the sample batch's own: leave out sequence_length, or give a function of micro-batch and sequence length that makes the batch."
            )
        return map_tensors(lambda x: resize(x, setup.micro_batch), batch)

    return make


def _own_loss(model, batch):
    """The loss that the model's forward pass gives, as transformers' models do."""
    if isinstance(batch, Mapping):  # a tokenizer's BatchEncoding is one
        out = model(**batch)
    else:
        out = model(*batch) if isinstance(batch, (tuple, list)) else model(batch)
    loss = out.get("loss") if isinstance(out, dict) else getattr(out, "loss", out)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise ValueError(
            "The forward pass gives no loss: give loss=..., a function of model and batch that returns one number."
        )
    return loss


def _first_sentence(error):
    text = " ".join(str(error).split()) or type(error).__name__
    return text.split(". ")[0].rstrip(".") + "."
