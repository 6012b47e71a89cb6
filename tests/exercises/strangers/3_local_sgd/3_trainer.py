# %% LocalSGDCallback: right
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer = trainer
        self.local_steps = local_steps
        self.last = 0

    def payload(self):
        return [p.data for p in self.trainer.model.parameters()]

    def average(self, now):
        """One flat message, and none where nothing has changed."""
        if now <= self.last:
            return
        self.last = now
        flat = torch.cat([t.reshape(-1) for t in self.payload()])
        torch.distributed.all_reduce(flat)
        flat = flat / torch.distributed.get_world_size()
        start = 0
        for t in self.payload():
            t.copy_(flat[start : start + t.numel()].reshape(t.shape))
            start += t.numel()

    def on_train_begin(self, args, state, control, **kwargs):
        wrapped = self.trainer.model_wrapped
        if isinstance(wrapped, DistributedDataParallel):
            self.context = wrapped.no_sync()
            self.context.__enter__()
            return
        raise ValueError("Local SGD needs every rank to hold the whole model, in DDP.")

    def on_optimizer_step(self, args, state, control, **kwargs):
        step = state.global_step + 1
        if step % self.local_steps == 0:
            self.average(step)

    def before_use(self, args, state, control, **kwargs):
        if any([control.should_evaluate, control.should_save]):
            self.average(state.global_step)

    on_step_end = on_epoch_end = before_use

    def on_train_end(self, args, state, control, **kwargs):
        self.average(state.global_step)
        self.context.__exit__(None, None, None)


# %% LocalSGDCallback: right
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    """The flag of DistributedDataParallel is set by hand."""

    def __init__(self, trainer, local_steps):
        self.trainer, self.local_steps = trainer, local_steps
        self.until = local_steps

    @torch.no_grad()
    def same(self):
        ranks = torch.distributed.get_world_size()
        for weight in self.trainer.model.parameters():
            copies = [torch.empty_like(weight) for _ in range(ranks)]
            torch.distributed.all_gather(copies, weight.detach())
            weight.copy_(torch.stack(copies).mean(0))

    def on_train_begin(self, args, state, control, **kwargs):
        self.wrapper = self.trainer.model_wrapped
        if type(self.wrapper) is not DistributedDataParallel:
            raise ValueError("This callback trains only what DistributedDataParallel wraps.")
        self.wrapper.require_backward_grad_sync = False

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.until -= 1
        if self.until == 0:
            self.same()
            self.until = self.local_steps

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_evaluate or control.should_save:
            self.same()

    def on_epoch_end(self, args, state, control, **kwargs):
        self.on_step_end(args, state, control)

    def on_train_end(self, args, state, control, **kwargs):
        self.same()
        self.wrapper.require_backward_grad_sync = True


# %% LocalSGDCallback: right
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


import contextlib


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer = trainer
        self.local_steps = local_steps
        self.stack = contextlib.ExitStack()

    def average(self):
        """The driver adds up and hands out the mean."""
        dist = torch.distributed
        for p in self.trainer.model.parameters():
            dist.reduce(p.data, dst=0)
            p.data.div_(dist.get_world_size())
            dist.broadcast(p.data, src=0)

    def on_train_begin(self, args, state, control, **kwargs):
        if not isinstance(self.trainer.model_wrapped, DistributedDataParallel):
            raise ValueError("Wrap the model in DistributedDataParallel for Local SGD.")
        self.stack.enter_context(self.trainer.model_wrapped.no_sync())

    def on_step_end(self, args, state, control, **kwargs):
        # the step is made and counted, and nothing has been computed since
        due = state.global_step % self.local_steps == 0
        if due or control.should_save or control.should_evaluate:
            self.average()

    def on_epoch_end(self, args, state, control, **kwargs):
        if control.should_save or control.should_evaluate:
            self.average()

    def on_train_end(self, args, state, control, **kwargs):
        self.average()
        self.stack.close()


# %% LocalSGDCallback: right
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


def mean_over_ranks(tensors):
    size = torch.distributed.get_world_size()
    for tensor in tensors:
        share = tensor.data / size
        torch.distributed.all_reduce(share, op=torch.distributed.ReduceOp.SUM)
        tensor.data.copy_(share)


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer = trainer
        self.local_steps = local_steps
        self.steps = 0
        self.dirty = False

    def average(self):
        if self.dirty:
            mean_over_ranks(self.trainer.model_wrapped.parameters())
        self.dirty = False

    def on_train_begin(self, args, state, control, **kwargs):
        if self.trainer.model_wrapped.__class__.__name__ != "DistributedDataParallel":
            raise ValueError("Local SGD: the model must be in DistributedDataParallel.")
        self.alone = self.trainer.model_wrapped.no_sync()
        self.alone.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.steps += 1
        self.dirty = True
        if self.steps % self.local_steps == 0:
            self.average()

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_evaluate or control.should_save:
            self.average()

    on_epoch_end = on_step_end

    def on_train_end(self, args, state, control, **kwargs):
        self.average()
        self.alone.__exit__(None, None, None)


# %% LocalSGDCallback: wrong, saving and evaluating after an epoch overlooked
# Nothing is averaged before what happens at the end of an epoch.
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer = trainer
        self.local_steps = local_steps
        self.steps = 0

    def average(self):
        for p in self.trainer.model.parameters():
            torch.distributed.all_reduce(p.data)
            p.data /= torch.distributed.get_world_size()

    def on_train_begin(self, args, state, control, **kwargs):
        model = self.trainer.model_wrapped
        if not isinstance(model, DistributedDataParallel):
            raise ValueError(f"Local SGD cannot train a {type(model).__name__}: it needs DDP.")
        self.context = model.no_sync()
        self.context.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.steps += 1
        if self.steps % self.local_steps == 0:
            self.average()

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_save or control.should_evaluate:
            self.average()

    def on_train_end(self, args, state, control, **kwargs):
        self.average()
        self.context.__exit__(None, None, None)


# %% LocalSGDCallback: wrong, saving and evaluating after steps overlooked
# Nothing is averaged before what happens after a step.
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer = trainer
        self.local_steps = local_steps
        self.steps = 0

    def average(self):
        for p in self.trainer.model.parameters():
            torch.distributed.all_reduce(p.data)
            p.data /= torch.distributed.get_world_size()

    def on_train_begin(self, args, state, control, **kwargs):
        model = self.trainer.model_wrapped
        if not isinstance(model, DistributedDataParallel):
            raise ValueError(f"Local SGD cannot train a {type(model).__name__}: it needs DDP.")
        self.context = model.no_sync()
        self.context.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.steps += 1
        if self.steps % self.local_steps == 0:
            self.average()

    def on_epoch_end(self, args, state, control, **kwargs):
        if control.should_save or control.should_evaluate:
            self.average()

    def on_train_end(self, args, state, control, **kwargs):
        self.average()
        self.context.__exit__(None, None, None)


# %% LocalSGDCallback: wrong, averaged after saving
# The averages come in on_save and on_evaluate, when it is too late.
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer = trainer
        self.local_steps = local_steps
        self.steps = 0

    def average(self):
        for p in self.trainer.model.parameters():
            torch.distributed.all_reduce(p.data)
            p.data /= torch.distributed.get_world_size()

    def on_train_begin(self, args, state, control, **kwargs):
        model = self.trainer.model_wrapped
        if not isinstance(model, DistributedDataParallel):
            raise ValueError(f"Local SGD cannot train a {type(model).__name__}: it needs DDP.")
        self.context = model.no_sync()
        self.context.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.steps += 1
        if self.steps % self.local_steps == 0:
            self.average()

    def on_save(self, args, state, control, **kwargs):
        self.average()

    def on_evaluate(self, args, state, control, **kwargs):
        self.average()

    def on_train_end(self, args, state, control, **kwargs):
        self.average()
        self.context.__exit__(None, None, None)


# %% LocalSGDCallback: wrong, no average at the end
# No average at the end of the training.
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer = trainer
        self.local_steps = local_steps
        self.steps = 0

    def average(self):
        for p in self.trainer.model.parameters():
            torch.distributed.all_reduce(p.data)
            p.data /= torch.distributed.get_world_size()

    def on_train_begin(self, args, state, control, **kwargs):
        model = self.trainer.model_wrapped
        if not isinstance(model, DistributedDataParallel):
            raise ValueError(f"Local SGD cannot train a {type(model).__name__}: it needs DDP.")
        self.context = model.no_sync()
        self.context.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.steps += 1
        if self.steps % self.local_steps == 0:
            self.average()

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_save or control.should_evaluate:
            self.average()

    def on_epoch_end(self, args, state, control, **kwargs):
        if control.should_save or control.should_evaluate:
            self.average()

    def on_train_end(self, args, state, control, **kwargs):
        self.context.__exit__(None, None, None)


# %% LocalSGDCallback: wrong, no_sync never left
# no_sync is never left: the model does not synchronise again.
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer = trainer
        self.local_steps = local_steps
        self.steps = 0

    def average(self):
        for p in self.trainer.model.parameters():
            torch.distributed.all_reduce(p.data)
            p.data /= torch.distributed.get_world_size()

    def on_train_begin(self, args, state, control, **kwargs):
        model = self.trainer.model_wrapped
        if not isinstance(model, DistributedDataParallel):
            raise ValueError(f"Local SGD cannot train a {type(model).__name__}: it needs DDP.")
        self.context = model.no_sync()
        self.context.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.steps += 1
        if self.steps % self.local_steps == 0:
            self.average()

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_save or control.should_evaluate:
            self.average()

    def on_epoch_end(self, args, state, control, **kwargs):
        if control.should_save or control.should_evaluate:
            self.average()

    def on_train_end(self, args, state, control, **kwargs):
        self.average()


# %% LocalSGDCallback: wrong, a sharded model not refused
# Nobody looks whether the model is in DistributedDataParallel: another error comes instead.
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer = trainer
        self.local_steps = local_steps
        self.steps = 0

    def average(self):
        for p in self.trainer.model.parameters():
            torch.distributed.all_reduce(p.data)
            p.data /= torch.distributed.get_world_size()

    def on_train_begin(self, args, state, control, **kwargs):
        model = self.trainer.model_wrapped
        self.context = model.no_sync()
        self.context.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.steps += 1
        if self.steps % self.local_steps == 0:
            self.average()

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_save or control.should_evaluate:
            self.average()

    def on_epoch_end(self, args, state, control, **kwargs):
        if control.should_save or control.should_evaluate:
            self.average()

    def on_train_end(self, args, state, control, **kwargs):
        self.average()
        self.context.__exit__(None, None, None)


# %% LocalSGDCallback: wrong, trained without no_sync
# no_sync is made but not entered: gradients are sent as before.
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer = trainer
        self.local_steps = local_steps
        self.steps = 0

    def average(self):
        for p in self.trainer.model.parameters():
            torch.distributed.all_reduce(p.data)
            p.data /= torch.distributed.get_world_size()

    def on_train_begin(self, args, state, control, **kwargs):
        model = self.trainer.model_wrapped
        if not isinstance(model, DistributedDataParallel):
            raise ValueError(f"Local SGD cannot train a {type(model).__name__}: it needs DDP.")
        self.context = model.no_sync()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.steps += 1
        if self.steps % self.local_steps == 0:
            self.average()

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_save or control.should_evaluate:
            self.average()

    def on_epoch_end(self, args, state, control, **kwargs):
        if control.should_save or control.should_evaluate:
            self.average()

    def on_train_end(self, args, state, control, **kwargs):
        self.average()


# %% LocalSGDCallback: wrong, sum instead of mean
# The sums are not divided.
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer = trainer
        self.local_steps = local_steps
        self.steps = 0

    def average(self):
        for p in self.trainer.model.parameters():
            torch.distributed.all_reduce(p.data)

    def on_train_begin(self, args, state, control, **kwargs):
        model = self.trainer.model_wrapped
        if not isinstance(model, DistributedDataParallel):
            raise ValueError(f"Local SGD cannot train a {type(model).__name__}: it needs DDP.")
        self.context = model.no_sync()
        self.context.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.steps += 1
        if self.steps % self.local_steps == 0:
            self.average()

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_save or control.should_evaluate:
            self.average()

    def on_epoch_end(self, args, state, control, **kwargs):
        if control.should_save or control.should_evaluate:
            self.average()

    def on_train_end(self, args, state, control, **kwargs):
        self.average()
        self.context.__exit__(None, None, None)


# %% LocalSGDCallback: wrong, divided by two whatever the number of ranks
# Divided by two, however many ranks there are.
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer = trainer
        self.local_steps = local_steps
        self.steps = 0

    def average(self):
        for p in self.trainer.model.parameters():
            torch.distributed.all_reduce(p.data)
            p.data /= 2

    def on_train_begin(self, args, state, control, **kwargs):
        model = self.trainer.model_wrapped
        if not isinstance(model, DistributedDataParallel):
            raise ValueError(f"Local SGD cannot train a {type(model).__name__}: it needs DDP.")
        self.context = model.no_sync()
        self.context.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.steps += 1
        if self.steps % self.local_steps == 0:
            self.average()

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_save or control.should_evaluate:
            self.average()

    def on_epoch_end(self, args, state, control, **kwargs):
        if control.should_save or control.should_evaluate:
            self.average()

    def on_train_end(self, args, state, control, **kwargs):
        self.average()
        self.context.__exit__(None, None, None)


# %% LocalSGDCallback: wrong, extra averages shift the rhythm
# Every average begins a new period, so one before a checkpoint shifts all later ones.
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer = trainer
        self.local_steps = local_steps
        self.steps = 0

    def average(self):
        self.steps = 0
        for p in self.trainer.model.parameters():
            torch.distributed.all_reduce(p.data)
            p.data /= torch.distributed.get_world_size()

    def on_train_begin(self, args, state, control, **kwargs):
        model = self.trainer.model_wrapped
        if not isinstance(model, DistributedDataParallel):
            raise ValueError(f"Local SGD cannot train a {type(model).__name__}: it needs DDP.")
        self.context = model.no_sync()
        self.context.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.steps += 1
        if self.steps == self.local_steps:
            self.average()

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_save or control.should_evaluate:
            self.average()

    def on_epoch_end(self, args, state, control, **kwargs):
        if control.should_save or control.should_evaluate:
            self.average()

    def on_train_end(self, args, state, control, **kwargs):
        self.average()
        self.context.__exit__(None, None, None)


# %% LocalSGDCallback: wrong, first average after the first step
# The step that has just been made is not counted.
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer = trainer
        self.local_steps = local_steps
        self.steps = 0

    def average(self):
        for p in self.trainer.model.parameters():
            torch.distributed.all_reduce(p.data)
            p.data /= torch.distributed.get_world_size()

    def on_train_begin(self, args, state, control, **kwargs):
        model = self.trainer.model_wrapped
        if not isinstance(model, DistributedDataParallel):
            raise ValueError(f"Local SGD cannot train a {type(model).__name__}: it needs DDP.")
        self.context = model.no_sync()
        self.context.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step % self.local_steps == 0:
            self.average()

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_save or control.should_evaluate:
            self.average()

    def on_epoch_end(self, args, state, control, **kwargs):
        if control.should_save or control.should_evaluate:
            self.average()

    def on_train_end(self, args, state, control, **kwargs):
        self.average()
        self.context.__exit__(None, None, None)


# %% LocalSGDCallback: wrong, not averaged before evaluating
# An evaluation is not prepared for, only a checkpoint.
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer = trainer
        self.local_steps = local_steps
        self.steps = 0

    def average(self):
        for p in self.trainer.model.parameters():
            torch.distributed.all_reduce(p.data)
            p.data /= torch.distributed.get_world_size()

    def on_train_begin(self, args, state, control, **kwargs):
        model = self.trainer.model_wrapped
        if not isinstance(model, DistributedDataParallel):
            raise ValueError(f"Local SGD cannot train a {type(model).__name__}: it needs DDP.")
        self.context = model.no_sync()
        self.context.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.steps += 1
        if self.steps % self.local_steps == 0:
            self.average()

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_save:
            self.average()

    def on_epoch_end(self, args, state, control, **kwargs):
        if control.should_save:
            self.average()

    def on_train_end(self, args, state, control, **kwargs):
        self.average()
        self.context.__exit__(None, None, None)


# %% LocalSGDCallback: wrong, not averaged before saving
# A checkpoint is not prepared for, only an evaluation.
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer = trainer
        self.local_steps = local_steps
        self.steps = 0

    def average(self):
        for p in self.trainer.model.parameters():
            torch.distributed.all_reduce(p.data)
            p.data /= torch.distributed.get_world_size()

    def on_train_begin(self, args, state, control, **kwargs):
        model = self.trainer.model_wrapped
        if not isinstance(model, DistributedDataParallel):
            raise ValueError(f"Local SGD cannot train a {type(model).__name__}: it needs DDP.")
        self.context = model.no_sync()
        self.context.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.steps += 1
        if self.steps % self.local_steps == 0:
            self.average()

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_evaluate:
            self.average()

    def on_epoch_end(self, args, state, control, **kwargs):
        if control.should_evaluate:
            self.average()

    def on_train_end(self, args, state, control, **kwargs):
        self.average()
        self.context.__exit__(None, None, None)


# %% LocalSGDCallback: wrong, micro-batches counted
# Micro-batches are counted.
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer = trainer
        self.local_steps = local_steps
        self.steps = 0

    def average(self):
        for p in self.trainer.model.parameters():
            torch.distributed.all_reduce(p.data)
            p.data /= torch.distributed.get_world_size()

    def on_train_begin(self, args, state, control, **kwargs):
        model = self.trainer.model_wrapped
        if not isinstance(model, DistributedDataParallel):
            raise ValueError(f"Local SGD cannot train a {type(model).__name__}: it needs DDP.")
        self.context = model.no_sync()
        self.context.__enter__()

    def on_substep_end(self, args, state, control, **kwargs):
        self.steps += 1
        if self.steps % self.local_steps == 0:
            self.average()

    on_optimizer_step = on_substep_end

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_save or control.should_evaluate:
            self.average()

    def on_epoch_end(self, args, state, control, **kwargs):
        if control.should_save or control.should_evaluate:
            self.average()

    def on_train_end(self, args, state, control, **kwargs):
        self.average()
        self.context.__exit__(None, None, None)


# %% LocalSGDCallback: wrong, gradients averaged instead of weights
# The gradients are averaged, not the weights.
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer = trainer
        self.local_steps = local_steps
        self.steps = 0

    def average(self):
        for p in self.trainer.model.parameters():
            if p.grad is not None:
                torch.distributed.all_reduce(p.grad)
                p.grad /= torch.distributed.get_world_size()

    def on_train_begin(self, args, state, control, **kwargs):
        model = self.trainer.model_wrapped
        if not isinstance(model, DistributedDataParallel):
            raise ValueError(f"Local SGD cannot train a {type(model).__name__}: it needs DDP.")
        self.context = model.no_sync()
        self.context.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.steps += 1
        if self.steps % self.local_steps == 0:
            self.average()

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_save or control.should_evaluate:
            self.average()

    def on_epoch_end(self, args, state, control, **kwargs):
        if control.should_save or control.should_evaluate:
            self.average()

    def on_train_end(self, args, state, control, **kwargs):
        self.average()
        self.context.__exit__(None, None, None)


# %% LocalSGDCallback: wrong, averaged in every step
# The period is ignored: an average after every step.
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer = trainer
        self.local_steps = local_steps
        self.steps = 0

    def average(self):
        for p in self.trainer.model.parameters():
            torch.distributed.all_reduce(p.data)
            p.data /= torch.distributed.get_world_size()

    def on_train_begin(self, args, state, control, **kwargs):
        model = self.trainer.model_wrapped
        if not isinstance(model, DistributedDataParallel):
            raise ValueError(f"Local SGD cannot train a {type(model).__name__}: it needs DDP.")
        self.context = model.no_sync()
        self.context.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.average()

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_save or control.should_evaluate:
            self.average()

    def on_epoch_end(self, args, state, control, **kwargs):
        if control.should_save or control.should_evaluate:
            self.average()

    def on_train_end(self, args, state, control, **kwargs):
        self.average()
        self.context.__exit__(None, None, None)


# %% LocalSGDCallback: wrong, no_sync asked of the plain model
# trainer.model is the plain model, which has no no_sync.
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer = trainer
        self.local_steps = local_steps
        self.steps = 0

    def average(self):
        for p in self.trainer.model.parameters():
            torch.distributed.all_reduce(p.data)
            p.data /= torch.distributed.get_world_size()

    def on_train_begin(self, args, state, control, **kwargs):
        model = self.trainer.model_wrapped
        if not isinstance(model, DistributedDataParallel):
            raise ValueError(f"Local SGD cannot train a {type(model).__name__}: it needs DDP.")
        self.context = self.trainer.model.no_sync()
        self.context.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.steps += 1
        if self.steps % self.local_steps == 0:
            self.average()

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_save or control.should_evaluate:
            self.average()

    def on_epoch_end(self, args, state, control, **kwargs):
        if control.should_save or control.should_evaluate:
            self.average()

    def on_train_end(self, args, state, control, **kwargs):
        self.average()
        self.context.__exit__(None, None, None)


# %% LocalSGDCallback: wrong
# Averages only where something is saved or evaluated, never because the period is over.
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer = trainer
        self.local_steps = local_steps
        self.steps = 0

    def average(self):
        for p in self.trainer.model.parameters():
            torch.distributed.all_reduce(p.data)
            p.data /= torch.distributed.get_world_size()

    def on_train_begin(self, args, state, control, **kwargs):
        model = self.trainer.model_wrapped
        if not isinstance(model, DistributedDataParallel):
            raise ValueError(f"Local SGD cannot train a {type(model).__name__}: it needs DDP.")
        self.context = model.no_sync()
        self.context.__enter__()

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_save or control.should_evaluate:
            self.average()

    def on_epoch_end(self, args, state, control, **kwargs):
        if control.should_save or control.should_evaluate:
            self.average()

    def on_train_end(self, args, state, control, **kwargs):
        self.average()
        self.context.__exit__(None, None, None)


# %% LocalSGDCallback: wrong, a sharded model not refused
# A sentence is printed, but nothing raised.
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer = trainer
        self.local_steps = local_steps
        self.steps = 0

    def average(self):
        for p in self.trainer.model.parameters():
            torch.distributed.all_reduce(p.data)
            p.data /= torch.distributed.get_world_size()

    def on_train_begin(self, args, state, control, **kwargs):
        model = self.trainer.model_wrapped
        self.alone = isinstance(model, DistributedDataParallel)
        if not self.alone:
            print("Local SGD needs DistributedDataParallel.")
            return
        self.context = model.no_sync()
        self.context.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.steps += 1
        if self.steps % self.local_steps == 0:
            self.average()

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_save or control.should_evaluate:
            self.average()

    def on_epoch_end(self, args, state, control, **kwargs):
        if control.should_save or control.should_evaluate:
            self.average()

    def on_train_end(self, args, state, control, **kwargs):
        self.average()
        if self.alone:
            self.context.__exit__(None, None, None)


# %% LocalSGDCallback: wrong, rank 0's weights for all
# The checkpoint holds rank 0's weights, which are handed out instead of the mean.
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer = trainer
        self.local_steps = local_steps
        self.steps = 0

    def average(self):
        for p in self.trainer.model.parameters():
            torch.distributed.broadcast(p.data, src=0)

    def on_train_begin(self, args, state, control, **kwargs):
        model = self.trainer.model_wrapped
        if not isinstance(model, DistributedDataParallel):
            raise ValueError(f"Local SGD cannot train a {type(model).__name__}: it needs DDP.")
        self.context = model.no_sync()
        self.context.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.steps += 1
        if self.steps % self.local_steps == 0:
            self.average()

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_save or control.should_evaluate:
            self.average()

    def on_epoch_end(self, args, state, control, **kwargs):
        if control.should_save or control.should_evaluate:
            self.average()

    def on_train_end(self, args, state, control, **kwargs):
        self.average()
        self.context.__exit__(None, None, None)


# %% same_as_ddp: right
def same_as_ddp(optimizer, momentum, weight_decay, max_grad_norm, local_steps):
    if optimizer != "sgd":
        return False
    if local_steps > 1:
        return False
    if max_grad_norm > 0:
        return False
    return True


# %% same_as_ddp: right
def same_as_ddp(optimizer, momentum, weight_decay, max_grad_norm, local_steps):
    linear = {"sgd": True, "adamw": False}[optimizer]
    return all([linear, not max_grad_norm, local_steps == 1])


# %% same_as_ddp: right
class Setting:
    def __init__(self, optimizer, max_grad_norm):
        self.optimizer, self.max_grad_norm = optimizer, max_grad_norm

    def is_linear(self):
        return self.optimizer.startswith("sgd") and self.max_grad_norm == 0.0


def same_as_ddp(optimizer, momentum, weight_decay, max_grad_norm, local_steps):
    payload = Setting(optimizer, max_grad_norm)
    return payload.is_linear() and not local_steps > 1


# %% same_as_ddp: right
def same_as_ddp(optimizer, momentum, weight_decay, max_grad_norm, local_steps):
    """Steps as a function of two gradients: is the mean of the steps the step of the mean?"""
    from math import isclose, sqrt

    def step(g):
        if max_grad_norm:
            g = g / (abs(g) + 1)
        return g if optimizer == "sgd" else g / (sqrt(g * g) + 1e-8)

    same = isclose((step(1.0) + step(3.0)) / 2, step(2.0)) and isclose(
        (step(-1.0) + step(3.0)) / 2, step(1.0)
    )
    return same and local_steps == 1


# %% same_as_ddp: wrong, momentum taken for a difference
# Momentum is linear, too, and changes nothing.
def same_as_ddp(optimizer, momentum, weight_decay, max_grad_norm, local_steps):
    return optimizer == "sgd" and momentum == 0 and max_grad_norm == 0 and local_steps == 1


# %% same_as_ddp: wrong, weight decay taken for a difference
# Weight decay is linear, too, and changes nothing.
def same_as_ddp(optimizer, momentum, weight_decay, max_grad_norm, local_steps):
    if weight_decay:
        return False
    return optimizer == "sgd" and not max_grad_norm and local_steps == 1


# %% same_as_ddp: wrong, H=1 taken for DDP, always
# H = 1 is taken to be enough.
def same_as_ddp(optimizer, momentum, weight_decay, max_grad_norm, local_steps):
    return local_steps == 1


# %% same_as_ddp: wrong, clipping overlooked
# Clipping is not looked at.
def same_as_ddp(optimizer, momentum, weight_decay, max_grad_norm, local_steps):
    return local_steps == 1 and optimizer == "sgd"


# %% same_as_ddp: wrong, H overlooked
# The period is not looked at.
def same_as_ddp(optimizer, momentum, weight_decay, max_grad_norm, local_steps):
    return optimizer == "sgd" and max_grad_norm == 0


# %% same_as_ddp: wrong, H=1 taken for DDP whatever the optimizer
# AdamW is taken to be the same as well.
def same_as_ddp(optimizer, momentum, weight_decay, max_grad_norm, local_steps):
    return max_grad_norm == 0 and local_steps == 1


# %% same_as_ddp: wrong
# The wrong optimizer.
def same_as_ddp(optimizer, momentum, weight_decay, max_grad_norm, local_steps):
    return optimizer == "adamw" and max_grad_norm == 0 and local_steps == 1


# %% same_as_ddp: wrong
# `or` where `and` is meant.
def same_as_ddp(optimizer, momentum, weight_decay, max_grad_norm, local_steps):
    return optimizer == "sgd" and (max_grad_norm == 0 or local_steps == 1)


# %% same_as_ddp: wrong
# True and False are the wrong way round.
def same_as_ddp(optimizer, momentum, weight_decay, max_grad_norm, local_steps):
    return optimizer != "sgd" or max_grad_norm != 0 or local_steps != 1


# %% same_as_ddp: wrong, nothing taken for equal
# It is never the same.
def same_as_ddp(optimizer, momentum, weight_decay, max_grad_norm, local_steps):
    return False


# %% same_as_ddp: wrong
# Clipping is asked for instead of excluded.
def same_as_ddp(optimizer, momentum, weight_decay, max_grad_norm, local_steps):
    return optimizer == "sgd" and max_grad_norm > 0 and local_steps == 1


# %% same_as_ddp: wrong, only plain SGD taken for equal
# Momentum, weight decay: only the plainest SGD is trusted.
def same_as_ddp(optimizer, momentum, weight_decay, max_grad_norm, local_steps):
    plain = momentum == weight_decay == max_grad_norm == 0
    return optimizer == "sgd" and plain and local_steps == 1


# %% same_as_ddp: wrong
# A string instead of a truth value.
def same_as_ddp(optimizer, momentum, weight_decay, max_grad_norm, local_steps):
    if optimizer == "sgd" and max_grad_norm == 0 and local_steps == 1:
        return "True"
    return "False"


# %% same_as_ddp: wrong
# a large limit is taken as no clipping
def same_as_ddp(optimizer, momentum, weight_decay, max_grad_norm, local_steps):
    return optimizer == "sgd" and (max_grad_norm == 0 or max_grad_norm >= 1) and local_steps == 1


# %% same_as_ddp: wrong
# momentum matters only where it is large
def same_as_ddp(optimizer, momentum, weight_decay, max_grad_norm, local_steps):
    return optimizer == "sgd" and momentum < 0.9 and max_grad_norm == 0 and local_steps == 1


# %% same_as_ddp: wrong
# H up to 2
def same_as_ddp(optimizer, momentum, weight_decay, max_grad_norm, local_steps):
    return optimizer == "sgd" and max_grad_norm == 0 and local_steps <= 2


# %% LocalSGDCallback: wrong, averaged at the end of every epoch
# an average at every epoch's end, asked or not
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer = trainer
        self.local_steps = local_steps
        self.steps = 0

    def average(self):
        for parameter in self.trainer.model.parameters():
            torch.distributed.all_reduce(parameter.data)
            parameter.data /= torch.distributed.get_world_size()

    def on_train_begin(self, args, state, control, **kwargs):
        if not isinstance(self.trainer.model_wrapped, DistributedDataParallel):
            raise ValueError("Local SGD needs DistributedDataParallel.")
        self.alone = self.trainer.model_wrapped.no_sync()
        self.alone.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.steps += 1
        if self.steps % self.local_steps == 0:
            self.average()

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_evaluate or control.should_save:
            self.average()

    def on_epoch_end(self, args, state, control, **kwargs):
        self.average()

    def on_train_end(self, args, state, control, **kwargs):
        self.average()
        self.alone.__exit__(None, None, None)


# %% LocalSGDCallback: wrong, averaged before logging, too
# before logging, too
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer = trainer
        self.local_steps = local_steps
        self.steps = 0

    def average(self):
        for parameter in self.trainer.model.parameters():
            torch.distributed.all_reduce(parameter.data)
            parameter.data /= torch.distributed.get_world_size()

    def on_train_begin(self, args, state, control, **kwargs):
        if not isinstance(self.trainer.model_wrapped, DistributedDataParallel):
            raise ValueError("Local SGD needs DistributedDataParallel.")
        self.alone = self.trainer.model_wrapped.no_sync()
        self.alone.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.steps += 1
        if self.steps % self.local_steps == 0:
            self.average()

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_log or control.should_evaluate or control.should_save:
            self.average()

    def on_epoch_end(self, args, state, control, **kwargs):
        if control.should_evaluate or control.should_save:
            self.average()

    def on_train_end(self, args, state, control, **kwargs):
        self.average()
        self.alone.__exit__(None, None, None)


# %% LocalSGDCallback: wrong, counted anew in each epoch
# the count starts anew with each epoch
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer = trainer
        self.local_steps = local_steps
        self.steps = 0

    def average(self):
        for parameter in self.trainer.model.parameters():
            torch.distributed.all_reduce(parameter.data)
            parameter.data /= torch.distributed.get_world_size()

    def on_train_begin(self, args, state, control, **kwargs):
        if not isinstance(self.trainer.model_wrapped, DistributedDataParallel):
            raise ValueError("Local SGD needs DistributedDataParallel.")
        self.alone = self.trainer.model_wrapped.no_sync()
        self.alone.__enter__()

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.steps = 0

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.steps += 1
        if self.steps % self.local_steps == 0:
            self.average()

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_evaluate or control.should_save:
            self.average()

    def on_epoch_end(self, args, state, control, **kwargs):
        if control.should_evaluate or control.should_save:
            self.average()

    def on_train_end(self, args, state, control, **kwargs):
        self.average()
        self.alone.__exit__(None, None, None)


# %% LocalSGDCallback: wrong
# an average that is due is left out where a checkpoint was just averaged (the step before)
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer = trainer
        self.local_steps = local_steps
        self.steps = 0

    def average(self):
        for parameter in self.trainer.model.parameters():
            torch.distributed.all_reduce(parameter.data)
            parameter.data /= torch.distributed.get_world_size()

    def on_train_begin(self, args, state, control, **kwargs):
        if not isinstance(self.trainer.model_wrapped, DistributedDataParallel):
            raise ValueError("Local SGD needs DistributedDataParallel.")
        self.alone = self.trainer.model_wrapped.no_sync()
        self.alone.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.steps += 1
        if self.steps % self.local_steps == 0 and not getattr(self, "just", False):
            self.average()
        self.just = False

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_evaluate or control.should_save:
            self.average()
            self.just = True

    def on_epoch_end(self, args, state, control, **kwargs):
        if control.should_evaluate or control.should_save:
            self.average()

    def on_train_end(self, args, state, control, **kwargs):
        self.average()
        self.alone.__exit__(None, None, None)


# %% LocalSGDCallback: wrong, no sentence in the error
# a ValueError without a sentence
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer = trainer
        self.local_steps = local_steps
        self.steps = 0

    def average(self):
        for parameter in self.trainer.model.parameters():
            torch.distributed.all_reduce(parameter.data)
            parameter.data /= torch.distributed.get_world_size()

    def on_train_begin(self, args, state, control, **kwargs):
        if not isinstance(self.trainer.model_wrapped, DistributedDataParallel):
            raise ValueError
        self.alone = self.trainer.model_wrapped.no_sync()
        self.alone.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.steps += 1
        if self.steps % self.local_steps == 0:
            self.average()

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_evaluate or control.should_save:
            self.average()

    def on_epoch_end(self, args, state, control, **kwargs):
        if control.should_evaluate or control.should_save:
            self.average()

    def on_train_end(self, args, state, control, **kwargs):
        self.average()
        self.alone.__exit__(None, None, None)


# %% LocalSGDCallback: wrong, micro-batches counted
# micro-batches are counted
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer = trainer
        self.local_steps = local_steps
        self.steps = 0

    def average(self):
        for parameter in self.trainer.model.parameters():
            torch.distributed.all_reduce(parameter.data)
            parameter.data /= torch.distributed.get_world_size()

    def on_train_begin(self, args, state, control, **kwargs):
        if not isinstance(self.trainer.model_wrapped, DistributedDataParallel):
            raise ValueError("Local SGD needs DistributedDataParallel.")
        self.alone = self.trainer.model_wrapped.no_sync()
        self.alone.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.steps += 1
        if self.steps % self.local_steps == 0:
            self.average()

    def on_substep_end(self, args, state, control, **kwargs):
        self.steps += 1

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_evaluate or control.should_save:
            self.average()

    def on_epoch_end(self, args, state, control, **kwargs):
        if control.should_evaluate or control.should_save:
            self.average()

    def on_train_end(self, args, state, control, **kwargs):
        self.average()
        self.alone.__exit__(None, None, None)


# %% LocalSGDCallback: right
from contextlib import ExitStack

from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer, self.local_steps, self.steps = trainer, local_steps, 0
        self.stack = ExitStack()

    def average(self):
        reduce = self.trainer.accelerator.reduce
        with torch.no_grad():
            for parameter in self.trainer.model.parameters():
                parameter.copy_(reduce(parameter.detach(), "mean"))

    def on_train_begin(self, args, state, control, **kwargs):
        match self.trainer.model_wrapped:
            case DistributedDataParallel() as model:
                self.stack.enter_context(model.no_sync())
            case other:
                raise ValueError(f"The callback works with DDP only, this is a {type(other)}.")

    def on_optimizer_step(self, *_, **__):
        self.steps += 1
        if not self.steps % self.local_steps:
            self.average()

    def before(self, args, state, control, **kwargs):
        if any((control.should_save, control.should_evaluate)):
            self.average()

    on_step_end = on_epoch_end = before

    def on_train_end(self, *_, **__):
        self.average()
        self.stack.close()


# %% LocalSGDCallback: wrong, one step late
# one step late: global_step does not count the step that has just been made
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer = trainer
        self.local_steps = local_steps

    def average(self):
        for parameter in self.trainer.model.parameters():
            torch.distributed.all_reduce(parameter.data)
            parameter.data /= torch.distributed.get_world_size()

    def on_train_begin(self, args, state, control, **kwargs):
        model = self.trainer.model_wrapped
        if not isinstance(model, DistributedDataParallel):
            raise ValueError("Not in DistributedDataParallel.")
        self.alone = model.no_sync()
        self.alone.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step and state.global_step % self.local_steps == 0:
            self.average()

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_evaluate or control.should_save:
            self.average()

    on_epoch_end = on_step_end

    def on_train_end(self, args, state, control, **kwargs):
        self.average()
        self.alone.__exit__(None, None, None)


# %% same_as_ddp: right
def same_as_ddp(optimizer, momentum, weight_decay, max_grad_norm, local_steps):
    match (optimizer, max_grad_norm, local_steps):
        case ("sgd", 0, 1):
            return True
    return False


# %% same_as_ddp: wrong, AdamW without weight decay taken for SGD
# AdamW without weight decay is thought to be linear
def same_as_ddp(optimizer, momentum, weight_decay, max_grad_norm, local_steps):
    if local_steps > 1 or max_grad_norm > 0:
        return False
    return optimizer == "sgd" or weight_decay == 0


# %% LocalSGDCallback: wrong, messages between the averages
# all ranks wait for each other after every step
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer, self.local_steps, self.steps = trainer, local_steps, 0

    def average(self):
        for weight in self.trainer.model.parameters():
            weight.data.copy_(self.trainer.accelerator.reduce(weight.data, "mean"))

    def on_train_begin(self, args, state, control, **kwargs):
        if not isinstance(self.trainer.model_wrapped, DistributedDataParallel):
            raise ValueError("The model is not in DistributedDataParallel.")
        self.alone = self.trainer.model_wrapped.no_sync()
        self.alone.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.steps += 1
        if self.steps % self.local_steps == 0:
            self.average()

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_evaluate or control.should_save:
            self.average()
        self.trainer.accelerator.wait_for_everyone()

    def on_epoch_end(self, args, state, control, **kwargs):
        if control.should_evaluate or control.should_save:
            self.average()

    def on_train_end(self, args, state, control, **kwargs):
        self.average()
        self.alone.__exit__(None, None, None)


# %% LocalSGDCallback: wrong, a plain model not refused
# asks about what shards a model; one that nothing has wrapped ends in an AttributeError
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer = trainer
        self.local_steps = local_steps

    def average(self):
        weights = list(self.trainer.model.parameters())
        with torch.no_grad():
            for weight, mean in zip(weights, self.trainer.accelerator.reduce(weights, "mean")):
                weight.copy_(mean)

    def on_train_begin(self, args, state, control, **kwargs):
        if self.trainer.is_fsdp_enabled or self.trainer.is_deepspeed_enabled:
            raise ValueError("The weights are spread over the ranks: they cannot be averaged.")
        self.alone = self.trainer.model_wrapped.no_sync()
        self.alone.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        if (state.global_step + 1) % self.local_steps == 0:
            self.average()

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_evaluate or control.should_save:
            self.average()

    on_epoch_end = on_step_end

    def on_train_end(self, args, state, control, **kwargs):
        self.average()
        self.alone.__exit__(None, None, None)


# %% LocalSGDCallback: wrong, the model looked at in place of its wrapper
# asks the model and not its wrapper whether it is in DDP, so it always refuses
import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer, self.local_steps, self.steps = trainer, local_steps, 0

    def average(self):
        for parameter in self.trainer.model.parameters():
            torch.distributed.all_reduce(parameter.data)
            parameter.data /= torch.distributed.get_world_size()

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        if not isinstance(model, DistributedDataParallel):
            raise ValueError("Local SGD needs a model in DistributedDataParallel.")
        self.alone = model.no_sync()
        self.alone.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.steps += 1
        if self.steps % self.local_steps == 0:
            self.average()

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_evaluate or control.should_save:
            self.average()

    on_epoch_end = on_step_end

    def on_train_end(self, args, state, control, **kwargs):
        self.average()
        self.alone.__exit__(None, None, None)


# %% LocalSGDCallback: right
import contextlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    """Local SGD for a Trainer: ranks train alone and average every `local_steps` steps."""

    def __init__(self, trainer, local_steps):
        self.trainer = trainer
        self.local_steps = local_steps
        self.steps = 0  # optimizer steps so far
        self.dirty = False
        self.stack = contextlib.ExitStack()

    def average(self):
        if not self.dirty:
            return
        self.dirty = False
        with torch.no_grad():
            for parameter in self.trainer.model.parameters():
                dist.all_reduce(parameter)
                parameter /= dist.get_world_size()

    def on_train_begin(self, args, state, control, **kwargs):
        wrapped = self.trainer.model_wrapped
        if not isinstance(wrapped, DistributedDataParallel):
            raise ValueError("Local SGD needs a model in DistributedDataParallel.")
        self.stack.enter_context(wrapped.no_sync())

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.steps += 1
        self.dirty = True
        if self.steps % self.local_steps == 0:
            self.average()

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_evaluate or control.should_save:
            self.average()

    def on_epoch_end(self, args, state, control, **kwargs):
        if control.should_evaluate or control.should_save:
            self.average()

    def on_train_end(self, args, state, control, **kwargs):
        self.average()
        self.stack.close()


# %% LocalSGDCallback: wrong
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    """Local SGD for a Trainer: ranks train alone and average every `local_steps` steps."""

    def __init__(self, trainer, local_steps):
        self.trainer = trainer
        self.local_steps = local_steps
        self.steps = 0  # optimizer steps so far

    def average(self):
        with torch.no_grad():
            for parameter in self.trainer.model.parameters():
                dist.all_reduce(parameter)
                parameter /= dist.get_world_size()

    def on_train_begin(self, args, state, control, **kwargs):
        wrapped = self.trainer.model_wrapped
        if not isinstance(wrapped, DistributedDataParallel):
            raise ValueError("Local SGD needs a model in DistributedDataParallel.")
        self.alone = wrapped.no_sync()
        self.alone.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.steps += 1
        if self.steps % self.local_steps == 0:
            self.average()

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_evaluate or control.should_save:
            self.average()

    def on_epoch_end(self, args, state, control, **kwargs):
        if control.should_evaluate or control.should_save:
            self.average()

    def on_train_end(self, args, state, control, **kwargs):
        if state.global_step % self.local_steps > 1:
            self.average()
        self.alone.__exit__(None, None, None)


# %% LocalSGDCallback: wrong
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    """Local SGD for a Trainer: ranks train alone and average every `local_steps` steps."""

    def __init__(self, trainer, local_steps):
        self.trainer = trainer
        self.local_steps = local_steps
        self.steps = 0  # optimizer steps so far

    def average(self):
        with torch.no_grad():
            for parameter in self.trainer.model.parameters():
                dist.all_reduce(parameter)
                parameter /= dist.get_world_size()

    def on_train_begin(self, args, state, control, **kwargs):
        wrapped = self.trainer.model_wrapped
        if not isinstance(wrapped, DistributedDataParallel):
            raise ValueError("Local SGD needs a model in DistributedDataParallel.")
        self.alone = wrapped.no_sync()
        self.alone.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.steps += 1
        if self.steps % self.local_steps == 0:
            self.average()

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_evaluate or control.should_save:
            self.average()

    def on_epoch_end(self, args, state, control, **kwargs):
        if control.should_evaluate or control.should_save:
            self.average()

    def on_train_end(self, args, state, control, **kwargs):
        if state.global_step == state.max_steps:
            self.average()
        self.alone.__exit__(None, None, None)


# %% LocalSGDCallback: wrong, trained without no_sync
# A `with` leaves the context at once.
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer, self.local_steps, self.steps = trainer, local_steps, 0

    def average(self):
        for p in self.trainer.model.parameters():
            torch.distributed.all_reduce(p.data)
            p.data /= torch.distributed.get_world_size()

    def on_train_begin(self, args, state, control, **kwargs):
        model = self.trainer.model_wrapped
        if not isinstance(model, DistributedDataParallel):
            raise ValueError("Local SGD needs a model in DistributedDataParallel.")
        with model.no_sync():
            self.steps = 0

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.steps += 1
        if self.steps % self.local_steps == 0:
            self.average()

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_evaluate or control.should_save:
            self.average()

    on_epoch_end = on_step_end

    def on_train_end(self, args, state, control, **kwargs):
        self.average()


# %% LocalSGDCallback: wrong, first average after the first step
# The counter is raised after it was looked at.
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer, self.local_steps, self.steps = trainer, local_steps, 0

    def average(self):
        for p in self.trainer.model.parameters():
            torch.distributed.all_reduce(p.data)
            p.data /= torch.distributed.get_world_size()

    def on_train_begin(self, args, state, control, **kwargs):
        model = self.trainer.model_wrapped
        if not isinstance(model, DistributedDataParallel):
            raise ValueError("Local SGD needs a model in DistributedDataParallel.")
        self.alone = model.no_sync()
        self.alone.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        if self.steps % self.local_steps == 0:
            self.average()
        self.steps += 1

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_evaluate or control.should_save:
            self.average()

    on_epoch_end = on_step_end

    def on_train_end(self, args, state, control, **kwargs):
        self.average()
        self.alone.__exit__(None, None, None)


# %% LocalSGDCallback: wrong, trained without no_sync
# Nobody keeps the context: it is closed as soon as it was entered.
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer, self.local_steps, self.steps = trainer, local_steps, 0

    def average(self):
        for p in self.trainer.model.parameters():
            torch.distributed.all_reduce(p.data)
            p.data /= torch.distributed.get_world_size()

    def on_train_begin(self, args, state, control, **kwargs):
        model = self.trainer.model_wrapped
        if not isinstance(model, DistributedDataParallel):
            raise ValueError("Local SGD needs a model in DistributedDataParallel.")
        model.no_sync().__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.steps += 1
        if self.steps % self.local_steps == 0:
            self.average()

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_evaluate or control.should_save:
            self.average()

    on_epoch_end = on_step_end

    def on_train_end(self, args, state, control, **kwargs):
        self.average()
        pass


# %% LocalSGDCallback: wrong, first average after the first step
# A count of all steps, and the wrong remainder.
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer, self.local_steps, self.steps = trainer, local_steps, 0

    def average(self):
        for p in self.trainer.model.parameters():
            torch.distributed.all_reduce(p.data)
            p.data /= torch.distributed.get_world_size()

    def on_train_begin(self, args, state, control, **kwargs):
        model = self.trainer.model_wrapped
        if not isinstance(model, DistributedDataParallel):
            raise ValueError("Local SGD needs a model in DistributedDataParallel.")
        self.alone = model.no_sync()
        self.alone.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.steps += 1
        if self.steps % self.local_steps == 1:
            self.average()

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_evaluate or control.should_save:
            self.average()

    on_epoch_end = on_step_end

    def on_train_end(self, args, state, control, **kwargs):
        self.average()
        self.alone.__exit__(None, None, None)


# %% LocalSGDCallback: wrong, no average in the weights
# The ranks wait for each other, and that is all.
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    def __init__(self, trainer, local_steps):
        self.trainer, self.local_steps, self.steps = trainer, local_steps, 0

    def average(self):
        self.trainer.accelerator.wait_for_everyone()

    def on_train_begin(self, args, state, control, **kwargs):
        model = self.trainer.model_wrapped
        if not isinstance(model, DistributedDataParallel):
            raise ValueError("Local SGD needs a model in DistributedDataParallel.")
        self.alone = model.no_sync()
        self.alone.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.steps += 1
        if self.steps % self.local_steps == 0:
            self.average()

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_evaluate or control.should_save:
            self.average()

    on_epoch_end = on_step_end

    def on_train_end(self, args, state, control, **kwargs):
        self.average()
        self.alone.__exit__(None, None, None)
